"""Ops on rows: looked up, written, sorted, added up, repeated, joined."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.ggml.types import tables
from ringline.server.columns import I64, Mask
from ringline.server.rules.facts import Group, Strides, every

__all__ = [
    "argmax",
    "argsort",
    "concat",
    "copy",
    "count_equal",
    "diag",
    "get_rows",
    "one_for_each_row",
    "repeat",
    "repeat_back",
    "set_rows",
    "top_k",
    "total",
]

#: ggml joins these by element; others by row.
_JOINED_BY_ELEMENT: Final = ("f32", "f16", "bf16", "i32", "i16", "i8")


def get_rows(group: Group) -> None:
    """GET_ROWS: rows of a table by number."""
    table, ids = group.source(0), group.source(1)
    good = (table.ne[2] == ids.ne[1]) & (table.ne[3] == ids.ne[2]) & (ids.ne[3] == 1)
    group.shape(good, "source 1 does not fit the table")
    good = group.out.has_shape(table.ne[0], ids.ne[0], ids.ne[1], ids.ne[2])
    group.shape(good, "its result has not a row for each number")


def set_rows(group: Group) -> None:
    """SET_ROWS: rows into a table by number; the table is source 2."""
    rows, ids, table = group.source(0), group.source(1), group.source(2)
    good = (table.ne[0] == rows.ne[0]) & every(table.ne[2:] == rows.ne[2:])
    group.shape(good, "its rows do not fit the table")
    good = (rows.ne[1] == ids.ne[0]) & (ids.ne[3] == 1) & every(ids.ne[1:3] > 0)
    good &= rows.ne[2] % np.maximum(ids.ne[1], 1) == 0
    good &= rows.ne[3] % np.maximum(ids.ne[2], 1) == 0
    group.shape(good, "source 1 has not a number for each row")
    group.kind(group.out.kinds == table.kinds, "its result has another type than the table")


def argsort(group: Group) -> None:
    """ARGSORT: up or down."""
    order = group.word(0)
    group.param((order == 0) | (order == 1), "its order is neither up nor down")


def top_k(group: Group) -> None:
    """TOP_K: at least one, at most all."""
    source, out = group.source(0), group.out
    good = (out.ne[0] >= 1) & (out.ne[0] <= source.ne[0])
    group.shape(good & every(out.ne[1:] == source.ne[1:]), "it takes more than there are")


def one_for_each_row(group: Group) -> None:
    """SUM_ROWS and MEAN."""
    source = group.source(0)
    good = group.out.has_shape(1, source.ne[1], source.ne[2], source.ne[3])
    group.shape(good, "its result has not a number for each row")


def total(group: Group) -> None:
    """SUM."""
    group.shape(group.out.has_shape(1), "its result is more than one number")


def argmax(group: Group) -> None:
    """ARGMAX: of matrices."""
    source = group.source(0)
    group.shape((source.ne[2] == 1) & (source.ne[3] == 1), "its source is no matrix")
    group.shape(group.out.has_shape(source.ne[1]), "its result has not a number for each row")


def count_equal(group: Group) -> None:
    """COUNT_EQUAL."""
    first, second = group.source(0), group.source(1)
    group.shape(first.has_shape(*second.ne), "its sources have different shapes")
    total(group)


def diag(group: Group) -> None:
    """DIAG: rows become matrices."""
    source = group.source(0)
    group.shape(source.ne[1] == 1, "its source has more than one row")
    good = group.out.has_shape(source.ne[0], source.ne[0], source.ne[2], source.ne[3])
    group.shape(good, "its result is not square")


def repeat(group: Group) -> None:
    """REPEAT: as often as it takes."""
    good = _fits(group.source(0).ne, group.out.ne)
    group.shape(good, "its source cannot be repeated to the shape of its result")


def repeat_back(group: Group) -> None:
    """REPEAT_BACK: the sum of all repetitions."""
    good = _fits(group.out.ne, group.source(0).ne)
    group.shape(good, "its result cannot be repeated to the shape of its source")


def _fits(part: I64, whole: I64) -> Mask:
    good: Mask = every(whole % np.maximum(part, 1) == 0)
    return good


def concat(group: Group) -> None:
    """CONCAT: equal in all dimensions but one."""
    first, second, out, along = group.source(0), group.source(1), group.out, group.word(0)
    group.param((along >= 0) & (along < 4), "its dimension is none of four")
    joined = np.arange(4)[:, None] == along
    good = np.where(joined, out.ne == first.ne + second.ne, out.ne == first.ne)
    good &= joined | (first.ne == second.ne)
    group.shape(every(good), "its sources cannot be joined to its result")
    easy = np.isin(first.kinds, [tables().type_names.index(name) for name in _JOINED_BY_ELEMENT])
    if not easy.all():
        rows = (group.strides(0) & group.strides(1) & Strides.ROWS) > 0
        group.stride(easy | rows, "the elements of a row are not side by side")


def copy(group: Group) -> None:
    """DUP, CONT, CPY: as many elements; types with blocks only in ways that the kernel can do."""
    source, out = group.source(0), group.out
    group.shape(source.count == out.count, "its result has not as many elements as its source")
    blocks = tables().block
    quantised = (blocks[source.kinds] > 1) | (blocks[out.kinds] > 1)
    if not quantised.any():
        return
    given, made = group.strides(0), group.made_strides()
    rows, made_rows = (given & Strides.ROWS) > 0, (made & Strides.ROWS) > 0
    packed, made_packed = (given & Strides.PACKED) > 0, (made & Strides.PACKED) > 0
    alike = every(source.ne == out.ne) & rows & made_rows
    same = (packed & made_packed) | alike | ~made_packed
    squeezed = made_packed & rows & (source.ne[0] % blocks[out.kinds] == 0)
    block = blocks[source.kinds]
    spread = made_rows & ((out.ne[0] % block == 0) | made_packed)
    good = np.where(
        source.kinds == out.kinds, same, np.where(blocks[out.kinds] > 1, squeezed, spread)
    )
    group.stride(good | ~quantised, "blocks of a quantised type cannot be copied that way")
