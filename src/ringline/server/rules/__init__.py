"""Rules for every op that model graphs use: types, shapes, strides, parameters.

ggml's constructors and kernels assert them, or rely on them without a word: a graph that comes over
the wire has seen no constructor, so a node that breaks one would abort the process or go out of
its memory. `check_nodes` refuses it before anything is built, naming the tensor and the rule.

    facts.py        columns over all tensors; the nodes of one op as a group
    kinds.py        patterns of types
    catalogue.py    the table of ops: what can be said in a line
    table.py        the table, applied to all nodes at once
    elementwise.py, matrices.py, attention.py, recurrent.py, rows.py, shapes.py, pictures.py
                    what needs more than a line: one function for all nodes of an op

What depends on data (a row number in a tensor) no rule can see.
"""

from __future__ import annotations

from ringline.server.rules.check import RULES, check_nodes, ruled

__all__ = ["RULES", "check_nodes", "ruled"]
