"""What ggml knows about tensor types and ops, as numpy tables indexed by number."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringline.ggml.layout import CUSTOM_OPS, OP_COUNT, TYPE_COUNT
from ringline.ggml.library import load

__all__ = ["Tables", "tables"]

_VIEW_OPS = ("NONE", "RESHAPE", "VIEW", "PERMUTE", "TRANSPOSE")


@dataclass(frozen=True, slots=True)
class Tables:
    """Facts by number.

    Attributes:
        block: elements per block; 0 marks a number that is no usable type.  # [TYPE_COUNT] i64
        size: bytes per block.                                               # [TYPE_COUNT] i64
        quantized: whether the type is quantised.                            # [TYPE_COUNT] bool
        type_names, op_names: as ggml spells them.
        custom: whether the op carries a function pointer.                   # [OP_COUNT] bool
        grows: whether a device may want more than nbytes for its result.    # [OP_COUNT] bool
        views: ops that only look at another tensor's data, and NONE.        # [OP_COUNT] bool
    """

    block: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]
    quantized: npt.NDArray[np.bool_]
    type_names: tuple[str, ...]
    op_names: tuple[str, ...]
    custom: npt.NDArray[np.bool_]
    grows: npt.NDArray[np.bool_]
    views: npt.NDArray[np.bool_]


@functools.cache
def tables() -> Tables:
    """The tables of the loaded library."""
    library = load()
    types, ops = range(TYPE_COUNT), range(OP_COUNT)
    op_names = tuple(library.op_name(op).decode() for op in ops)
    return Tables(
        block=np.array([library.blck_size(kind) for kind in types], np.int64),
        size=np.array([library.type_size(kind) for kind in types], np.int64),
        quantized=np.array([library.is_quantized(kind) for kind in types], np.bool_),
        type_names=tuple((library.type_name(kind) or b"?").decode() for kind in types),
        op_names=op_names,
        custom=np.array([name in CUSTOM_OPS for name in op_names], np.bool_),
        grows=np.array([library.op_alloc_size_may_expand(op) for op in ops], np.bool_),
        views=np.array([name in _VIEW_OPS for name in op_names], np.bool_),
    )
