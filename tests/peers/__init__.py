"""The peers our tests run against, above all the stock ggml RPC client and server, as processes.

    stock_library      the stock shared libraries: where they are, structs, prototypes
    stock_server       a script: the stock server
    stock_client       a script: the stock client
    workloads          the token ids that every arm of a comparison has to agree on
    decoder            what the workloads stand on: model, context, batch, greedy choice
    processes          start a peer, wait until it is ready, show its log, end it
    process_tree       the processes that a process has started, and their memory
    dead_ends          endpoints where nobody answers
    recorder           a proxy that keeps every frame
    exercise, meaning  a stock client that sends every command and says what it meant
    capture, golden    write the golden bytes, read them
    tripwire           a libggml-rpc that nobody may call

Nothing in here imports ringline: a mistake of ours cannot hide in both sides of a comparison.
"""
