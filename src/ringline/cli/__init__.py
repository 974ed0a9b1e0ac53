"""Words for people: the commands of `ringline`.

Data goes to stdout, talk and progress to stderr. Exit codes: 0 done, 1 an error (one sentence on
stderr), 2 wrong usage, 130 interrupted.
"""
