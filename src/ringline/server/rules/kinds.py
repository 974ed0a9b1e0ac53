"""Which types an op takes, written as patterns and compiled to tables.

A pattern names the type of the result, then of each source: "f32 dot f32". A word is a ggml type,
a class below, `any`, or several of these joined by `|`; or `=` (as the first source), or `out` (as
the result); `-` is no source, and a `?` at the end of a word says that the source may be absent.
The classes are what the CPU's tables of types hold in llama-cpp-python 0.3.36.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.layout import MAX_SRC, OP_COUNT
from ringline.ggml.types import tables
from ringline.server.rules.facts import NO_KIND

__all__ = ["KindTables", "compile_kinds"]

_BY_Q8_0: Final = "q1_0|q2_0|q4_0|q5_0|q8_0|mxfp4|nvfp4|iq4_nl"
_BY_Q8_1: Final = "q4_1|q5_1"
_TO_K: Final = "q2_K|q3_K|q4_K|q5_K|q6_K|iq4_xs|tq1_0|tq2_0"
_BY_Q8_K: Final = f"{_TO_K}|iq2_xxs|iq2_xs|iq2_s|iq3_xxs|iq3_s|iq1_s|iq1_m"
#: quantised types that can be made into floats, and multiplied.
_QUANTISED: Final = f"{_BY_Q8_0}|{_BY_Q8_1}|{_BY_Q8_K}"
_CLASSES: Final[Mapping[str, str]] = {
    "float": "f32|f16|bf16",
    "by-q8_0": _BY_Q8_0,
    "by-q8_1": _BY_Q8_1,
    "by-q8_K": _BY_Q8_K,
    "quantised": _QUANTISED,
    "dot": f"f32|f16|bf16|{_QUANTISED}",
    "from-float": f"f32|f16|bf16|{_BY_Q8_0}|{_BY_Q8_1}|{_TO_K}|q8_1|q8_K",
}
#: one more than the types: NO_KIND.
_KINDS: Final = NO_KIND + 1
#: result and first two sources have one table, which knows combinations; the others one each.
_TOGETHER: Final = 2


class KindTables:
    """For each op the allowed types.

    Attributes:
        together: of result and first two sources.   # [OP_COUNT, _KINDS, _KINDS, _KINDS] bool
        others: of each further source.              # [OP_COUNT, MAX_SRC, _KINDS] bool
    """

    def __init__(self) -> None:
        self.together = np.zeros((OP_COUNT, _KINDS, _KINDS, _KINDS), np.bool_)
        self.others = np.zeros((OP_COUNT, MAX_SRC, _KINDS), np.bool_)

    def allow(self, op: int, pattern: str) -> None:
        """Allow what a pattern says."""
        out, first, second, *rest = [*pattern.split(), *["-"] * MAX_SRC][: MAX_SRC + 1]
        for of_first in _kinds(first):
            for of_out in _kinds(out, of_first):
                of_second = list(_kinds(second, of_first, of_out))
                self.together[op, of_out, of_first, of_second] = True
        for number, word in enumerate(rest, start=_TOGETHER):
            self.others[op, number, list(_kinds(word))] = True

    def bad(
        self, ops: npt.NDArray[np.int64], out: npt.NDArray[np.int64], kinds: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.bool_]:
        """Which nodes have types that their op does not take.

        Args:
            ops: of the nodes.              # [n]
            out: types of the results.      # [n]
            kinds: types of the sources.    # [n, MAX_SRC]
        """
        together = self.together[ops, out, kinds[:, 0], kinds[:, 1]]
        numbers = np.arange(_TOGETHER, MAX_SRC)
        others = self.others[ops[:, None], numbers, kinds[:, _TOGETHER:]]
        if together.all() and others.all():
            return np.zeros(len(ops), np.bool_)
        bad: npt.NDArray[np.bool_] = ~(together & others.all(axis=1))
        return bad


def compile_kinds(patterns: Mapping[str, Sequence[str]]) -> KindTables:
    """Make the tables of all ops.

    Args:
        patterns: by name of the op.
    """
    names = {name: number for number, name in enumerate(tables().op_names)}
    compiled = KindTables()
    for name, lines in patterns.items():
        for line in lines:
            compiled.allow(names[name], line)
    return compiled


def _kinds(word: str, first: int = NO_KIND, out: int = NO_KIND) -> Iterator[int]:
    """The types that a word stands for."""
    if word.endswith("?") or word == "-":
        yield NO_KIND
    for part in word.rstrip("?").split("|"):
        if part == "=":
            yield first
        elif part == "out":
            yield out
        elif part == "any":
            yield from np.flatnonzero(tables().block).tolist()
        elif part in _CLASSES:
            yield from _kinds(_CLASSES[part])
        elif part != "-":
            yield tables().type_names.index(part)
