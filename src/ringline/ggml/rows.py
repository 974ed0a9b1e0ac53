"""Rows of a quantised table as f32, by the very functions that ggml's GET_ROWS calls.

So the result is that of GET_ROWS on the CPU backend, bit by bit. Sizes are bytes, widths elements.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ringline.ggml.layout import TYPE_COUNT, TypeTraits
from ringline.ggml.library import load
from ringline.ggml.types import tables

__all__ = ["F32", "dequantise_into", "dequantise_rows", "has_rows", "row_size"]

#: GGML_TYPE_F32, and the size of one.
F32: Final = 0
_FLOAT: Final = 4
#: ggml_to_float_t: (const void * x, float * y, int64_t k).
_TO_FLOAT: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)


def has_rows(kind: int) -> bool:
    """Whether rows of this ggml_type can be turned into f32; False for what is no type."""
    if not 0 <= kind < TYPE_COUNT or not tables().block[kind]:
        return False
    return kind == F32 or bool(_traits(kind).to_float)


def row_size(kind: int, width: int) -> int | None:
    """Bytes of a row of `width` elements; None where it would hold no whole blocks."""
    block, size = int(tables().block[kind]), int(tables().size[kind])
    return None if width % block else width // block * size


def dequantise_rows(kind: int, table: memoryview, row_bytes: int, ids: Sequence[int]) -> bytes:
    """Rows of a table as f32; as dequantise_into().

    Args:
        kind: ggml_type with has_rows().
        table: rows of `row_bytes` each.
        row_bytes: size of a row, whole blocks.
        ids: which rows.

    Returns:
        The rows one after another, [len(ids), width] f32.
    """
    width = row_bytes // int(tables().size[kind]) * int(tables().block[kind])
    out = bytearray(_FLOAT * width * len(ids))
    dequantise_into(kind, width, table, ids, memoryview(out))
    return bytes(out)


def dequantise_into(
    kind: int, width: int, table: memoryview, ids: Sequence[int], out: memoryview
) -> None:
    """Write rows of a table as f32, one after another.

    The caller has checked all bounds: C believes them.

    Args:
        kind: ggml_type with has_rows().
        width: elements of a row, whole blocks.
        table: the rows.
        ids: which rows, each inside the table.
        out: where they go, [len(ids), width] f32; at least as long.
    """
    if not ids or not width:
        return
    step = row_size(kind, width) or 0
    source, target = _address(table), _address(out)
    convert = _converter(kind)
    for index, row in enumerate(ids):
        convert(source + row * step, target + index * _FLOAT * width, width)


@functools.cache
def _converter(kind: int) -> Callable[[int, int, int], object]:
    """(source, target, width): turns one row into f32. ggml has no function that copies f32."""
    if kind == F32:
        return lambda source, target, width: ctypes.memmove(target, source, _FLOAT * width)
    address = _traits(kind).to_float
    assert address is not None, "has_rows() was not asked"
    function: Callable[[int, int, int], object] = _TO_FLOAT(address)
    return function


def _traits(kind: int) -> TypeTraits:
    return TypeTraits.from_address(load().get_type_traits(kind))


def _address(data: memoryview) -> int:
    return int(np.frombuffer(data, np.uint8).ctypes.data)
