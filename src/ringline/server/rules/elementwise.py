"""Ops that make one element of one: parameters, and the shapes that the catalogue cannot say."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.ggml.types import tables
from ringline.server.columns import I64
from ringline.server.rules.facts import Group, Strides, every

__all__ = [
    "accumulate",
    "add",
    "add_id",
    "diag_mask",
    "glu",
    "group_norm",
    "norm",
    "one_value",
    "roll",
    "triangle",
    "unary",
]

_UNARY_COUNT: Final = 22
_GLU_COUNT: Final = 7
_GLU_FLOATS: Final = {3: ("f32",), 6: ("f32", "f16")}  # SWIGLU_OAI, SWIGLU_CLAMP
#: GELU, GELU_QUICK, SILU, GELU_ERF write what they read.
_UNARY_SAME: Final = (8, 9, 10, 16)
_XIELU: Final = 17
_TRIANGLES: Final = 4


def unary(group: Group) -> None:
    """UNARY: its kind, and the kinds that do not convert."""
    kind, source = group.word(0), group.source(0)
    group.param((kind >= 0) & (kind < _UNARY_COUNT), f"its kind is none of {_UNARY_COUNT}")
    same = group.out.kinds == source.kinds
    if not same.all():
        converts = ~np.isin(kind, _UNARY_SAME)
        group.kind(same | converts, "its result has another type than its source")
    even = (group.strides(0) & Strides.EVEN) > 0
    group.stride(even | (kind != _XIELU), "source 0: its rows are not at even distances")


def glu(group: Group) -> None:
    """GLU: the halves are in one source, or in two of the same shape."""
    kind, first, second = group.word(0), group.source(0), group.source(1)
    group.param((kind >= 0) & (kind < _GLU_COUNT), f"its kind is none of {_GLU_COUNT}")
    for number, names in _GLU_FLOATS.items():
        if (kind == number).any():
            allowed = np.isin(first.kinds, [tables().type_names.index(name) for name in names])
            group.kind(allowed | (kind != number), f"this kind takes {' or '.join(names)} only")
    width = np.where(second.given, first.ne[0], first.ne[0] // 2)
    rest = first.ne[1], first.ne[2], first.ne[3]
    group.shape(group.out.has_shape(width, *rest), "its result is not as wide as half its source")
    alike = second.has_shape(*first.ne) | ~second.given
    group.shape(alike, "its sources have different shapes")


def norm(group: Group) -> None:
    """NORM, RMS_NORM, L2_NORM: eps is a number that is not negative."""
    group.param(group.real(0) >= 0, "its eps is negative or no number")


def group_norm(group: Group) -> None:
    """GROUP_NORM."""
    n_groups = group.word(0)
    good = (n_groups > 0) & (n_groups <= group.source(0).ne[2])
    group.param(good, "its groups are none, or more than its channels")


def add(group: Group) -> None:
    """ADD to quantised data: without repetition, and not in place with odd strides."""
    first, second = group.source(0), group.source(1)
    plain = ~tables().quantized[first.kinds]
    if plain.all():
        return
    group.shape(plain | second.has_shape(*first.ne), "quantised data is added to without repeating")
    rows = (group.strides(1) & Strides.ROWS) > 0
    group.stride(plain | rows, "source 1: the elements of a row are not side by side")
    ordered = every(np.diff(group.out.nb, axis=0) >= 0)
    group.stride(plain | ordered, "the result is transposed")


def add_id(group: Group) -> None:
    """ADD_ID: a row of source 1 for each row of source 0, by number."""
    first, second, ids = group.source(0), group.source(1), group.source(2)
    group.shape(first.ne[0] == second.ne[0], "its sources have rows of different length")
    good = (first.ne[1] == ids.ne[0]) & (first.ne[2] == ids.ne[1])
    group.shape(good, "source 2 does not name a row for each row of source 0")


def accumulate(group: Group) -> None:
    """ACC and SET: source 1 goes into a part of source 0 that op_params describe."""
    whole, part = group.out, group.source(1)
    strides = np.stack([np.full(len(group.nodes), 4), *(group.word(word) for word in range(3))])
    offset = group.word(3)
    group.param(every(strides >= 0) & (offset >= 0), "a stride or the offset is negative")
    steps = np.maximum(part.ne - 1, 0).astype(np.float64) * strides  # as floats they do not wrap
    end = offset + steps.sum(axis=0) + 4
    group.param(end <= 4 * whole.count, "the part does not lie in the whole")


def one_value(group: Group) -> None:
    """ADD1: source 1 is one number."""
    group.shape(group.source(1).has_shape(1), "source 1 is more than one number")
    group.stride((group.strides(0) & Strides.PACKED) > 0, "source 0: it is not contiguous")


def diag_mask(group: Group) -> None:
    """DIAG_MASK_INF, DIAG_MASK_ZERO."""
    group.param(group.word(0) >= 0, "its number of past tokens is negative")


def triangle(group: Group) -> None:
    """TRI: of square matrices."""
    kind, source = group.word(0), group.source(0)
    group.param((kind >= 0) & (kind < _TRIANGLES), f"its kind is none of {_TRIANGLES}")
    group.shape(source.ne[0] == source.ne[1], "its source is not square")


def roll(group: Group) -> None:
    """ROLL: by less than the shape."""
    shifts: I64 = np.abs(group.words(0, 1, 2, 3))
    good = every(shifts < group.source(0).ne)
    group.param(good, "it shifts by more than there are elements")
