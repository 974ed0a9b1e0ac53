"""A fuzzer of the node: recorded graphs of models, changed in all ways that come to mind.

    python -m tests.fuzz run -n 10000 --seed 1       what `make fuzz N=10000 SEED=1` calls
    python -m tests.fuzz replay fuzz-failures/1-417.json

`models` runs small models, `recording` keeps what a coordinator sends to a node meanwhile, `corpus`
turns that into scenes for any session, `draft`, `mutators` and `cases` make a case
of a scene and a number, `session` plays it to a node, `campaign` judges, counts and writes failures
down. `frames` makes malformed messages of every command. `bystander` is the second client, in a
process of its own, whose tokens must stay right.

A case is a function of seed, number and the recorded scene: the same seed gives the same cases.
"""
