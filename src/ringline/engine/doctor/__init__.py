"""Would a ring over these nodes run? Looks at each node, each way between two, and their results.

findings   what a check says: a value
known      one small graph, computed on a device and on this machine
node       one node: reach it, what it is, how fast, does it compute right
ways       from node to node
examine    all of it, nodes side by side
"""
