"""What the rules look at: columns over all tensors of a graph, and the nodes of one op as a group.

No rule costs Python per tensor: a group holds all nodes of an op at once, and its operands are
columns as long as the group. Strides and sizes are bytes, shapes as ggml has them: ne[0] is a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag

import numpy as np
import numpy.typing as npt

from ringline.ggml.layout import TYPE_COUNT
from ringline.ggml.types import tables
from ringline.server.columns import I64, Mask, refuse
from ringline.server.structure import Structure

__all__ = ["NO_KIND", "Facts", "Group", "Operand", "Strides", "every", "strides_of"]

#: the type of a source that is not there.
NO_KIND = TYPE_COUNT


class Strides(IntFlag):
    """What is known of a tensor's strides; a demand is a set of these.

    ROWS: the elements of a row are side by side.
    PACKED: no gaps; strides of dimensions of one element may be anything (ggml_is_contiguous).
    EVEN: rows at even distances (ggml_is_contiguous_1).
    EXACT: those of a new tensor, also where a dimension has one element.
    """

    ROWS = 1
    PACKED = 2
    EVEN = 4
    EXACT = 8


@dataclass(frozen=True, slots=True)
class Operand:
    """The result, or one of the sources, of each node of a group.

    Attributes:
        kinds: types; NO_KIND where there is none.  # [n]
        ne, nb: shapes and strides, by dimension; ones where there is none.  # [4, n]
    """

    kinds: I64
    ne: I64
    nb: I64

    @property
    def given(self) -> Mask:
        """Which are there."""
        there: Mask = self.kinds != NO_KIND
        return there

    @property
    def count(self) -> I64:
        """Elements of each."""
        count: I64 = self.ne[0] * self.ne[1] * self.ne[2] * self.ne[3]
        return count

    def has_shape(self, *ne: I64 | int) -> Mask:
        """Which have this shape; missing dimensions are 1."""
        wanted = (*ne, 1, 1, 1)[:4]
        alike = [np.asarray(mine == given) for mine, given in zip(self.ne, wanted, strict=True)]
        return every(np.stack(alike))


def every(good: npt.NDArray[np.bool_] | np.bool_) -> Mask:
    """Whether all dimensions of a node are good: a mask over dimensions becomes one over nodes."""
    whole: Mask = np.all(good, axis=0)
    return whole


class Facts:
    """Columns over all tensors of a graph, with one more column for "no tensor".

    An index of -1 finds the last column, so absent sources need no special case.

    Attributes:
        structure: where all this comes from.
        kinds: types.                                # [n_tensors + 1] i64
        ne, nb: shapes and strides, by dimension.    # [4, n_tensors + 1] i64
        strides: what is known of the strides.       # [n_tensors + 1] u8
        params: op_params as 32-bit integers.        # [n_tensors, 16] i32
    """

    def __init__(self, structure: Structure) -> None:
        self.structure = structure
        self.kinds: I64 = np.append(structure.kinds, NO_KIND)
        one = np.ones((1, 4), np.int64)
        self.ne: I64 = np.ascontiguousarray(np.concatenate((structure.ne, one)).T)
        self.nb: I64 = np.ascontiguousarray(np.concatenate((structure.nb, one)).T)
        self.strides = np.append(
            strides_of(structure.kinds, self.ne[:, :-1], self.nb[:, :-1]), 0xFF
        )
        raw = np.ascontiguousarray(structure.tensors["op_params"])
        self.params: npt.NDArray[np.int32] = raw.view("<i4").reshape(-1, 16)

    def operand(self, indices: I64) -> Operand:
        """The tensors at these indices."""
        return Operand(self.kinds[indices], self.ne[:, indices], self.nb[:, indices])


class Group:
    """All nodes of one op.

    Attributes:
        op: the op's name.
        nodes: indices of the nodes.                 # [n] i64
        params: op_params, by word.                  # [16, n] i32
        out: the results.
    """

    def __init__(self, facts: Facts, op: str, nodes: I64) -> None:
        self.op = op
        self.nodes = nodes
        self.params: npt.NDArray[np.int32] = np.ascontiguousarray(facts.params[nodes].T)
        self.out = facts.operand(nodes)
        self._facts = facts
        self._sources = facts.structure.sources[nodes]

    def source(self, number: int) -> Operand:
        """Source `number` of each node."""
        return self._facts.operand(self._sources[:, number])

    def strides(self, number: int) -> npt.NDArray[np.uint8]:
        """What is known of the strides of source `number`."""
        known: npt.NDArray[np.uint8] = self._facts.strides[self._sources[:, number]]
        return known

    def made_strides(self) -> npt.NDArray[np.uint8]:
        """What is known of the strides of the results."""
        known: npt.NDArray[np.uint8] = self._facts.strides[self.nodes]
        return known

    def word(self, number: int) -> I64:
        """Word `number` of op_params, as an integer."""
        word: I64 = self.params[number].astype(np.int64)
        return word

    def words(self, *numbers: int) -> I64:
        """Words of op_params, as integers, one below the other."""
        words: I64 = self.params[list(numbers)].astype(np.int64)
        return words

    def real(self, number: int) -> npt.NDArray[np.float32]:
        """Word `number` of op_params, as a float."""
        real: npt.NDArray[np.float32] = self.params[number].view(np.float32)
        return real

    def shape(self, good: Mask, text: str) -> None:
        """Demand something of shapes.

        Raises:
            RefusedError: one node is not good; the text says what it should be.
        """
        self._demand(good, "op-shape", text)

    def kind(self, good: Mask, text: str) -> None:
        """Demand something of types; raises as shape()."""
        self._demand(good, "op-type", text)

    def stride(self, good: Mask, text: str) -> None:
        """Demand something of strides; raises as shape()."""
        self._demand(good, "op-stride", text)

    def param(self, good: Mask, text: str) -> None:
        """Demand something of op_params; raises as shape()."""
        self._demand(good, "op-params", text)

    def _demand(self, good: Mask, rule: str, text: str) -> None:
        if not good.all():
            tensors = self._facts.structure.tensors
            refuse(tensors, ~good, f"{self.op}: {text}", rule=rule, among=self.nodes)


def strides_of(kinds: I64, ne: I64, nb: I64) -> npt.NDArray[np.uint8]:
    """The flags of Strides for each tensor."""
    known = tables()
    size, block = known.size[kinds], known.block[kinds]
    alone = ne == 1
    first = nb[0] == size
    row = first | (ne[0] == block)
    pitch = size * (ne[0] // block)
    plane = pitch * ne[1]
    one, two, three = nb[1] == pitch, nb[2] == plane, nb[3] == plane * ne[2]
    packed = row & (one | alone[1]) & (two | alone[2]) & (three | alone[3])
    rows = ne[1] * nb[1]
    even = row & ((nb[2] == rows) | alone[2]) & ((nb[3] == rows * ne[2]) | alone[3])
    flags: npt.NDArray[np.uint8] = first * np.uint8(Strides.ROWS)
    flags |= packed * np.uint8(Strides.PACKED)
    flags |= even * np.uint8(Strides.EVEN)
    flags |= (first & one & two & three) * np.uint8(Strides.EXACT)
    return flags
