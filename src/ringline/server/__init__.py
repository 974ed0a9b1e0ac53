"""Lend this machine's devices: the node behind `ringline serve`.

    node         put it together, print the banner     options     what the person chose
    probe        describe the devices, in a child      policy      whom the node may dial
    gatekeeper   the loop                              reception   accept, HELLO, limits
    ports        TLS, plain, loopback                  door        the doorman's place in the loop
    doorman      TLS handshakes, a process             relay       TLS to plain, a process each
    crowd        handshakes: deadlines, who makes room
    handshake    the first bytes, pure                 roster      live sessions, routing
    pool         fork, hand over, reap                 handover    the message with a socket
    session      a session process                     connection  one thread, one client
    actions      who may ask for what                  context     what a handler may use
    handlers/    one function per command              execution   turns on a device
    buffers      handles, addresses, lifetime          regions     one tensor record, checked
    graphs       graph bodies: memory, C structs       structure   ids, shapes, order; ops
    peers        hidden states to other nodes
    tally        named counters in shared memory       ledger      the sums over all processes
    exporter     the metrics page, a process           exposition  the names of the metrics
    settling     what each forked process does first

The gatekeeper never computes and never touches a device, so that it may fork at any time. A session
process owns everything of one client and gives it back by ending.
"""
