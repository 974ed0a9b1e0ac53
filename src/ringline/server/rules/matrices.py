"""Products of matrices."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.ggml.types import tables
from ringline.server.rules.facts import Group, every

__all__ = ["mul_mat", "mul_mat_id", "out_prod", "solve_tri"]

_HADAMARD: Final = 1


def mul_mat(group: Group) -> None:
    """MUL_MAT: [k, n] and [k, m] give [n, m]; source 0 is repeated in the dimensions above."""
    left, right = group.source(0), group.source(1)
    group.shape(left.ne[0] == right.ne[0], "its sources have rows of different length")
    repeats = every(right.ne[2:] % np.maximum(left.ne[2:], 1) == 0)
    group.shape(repeats, "source 0 cannot be repeated to the shape of source 1")
    good = group.out.has_shape(left.ne[1], right.ne[1], right.ne[2], right.ne[3])
    group.shape(good, "its result has not the shape of the product")
    hadamard = group.word(1) == _HADAMARD
    if hadamard.any():  # source 0 is not read: its kernel works in the rows of the result
        names = tables().type_names
        easy = (right.kinds == names.index("f32")) | (right.kinds == names.index("f16"))
        group.kind(easy | ~hadamard, "a Hadamard product takes f32 or f16 only")
        width = right.ne[0]
        square = (width == left.ne[1]) & (width & (width - 1) == 0)
        group.shape(square | ~hadamard, "a Hadamard matrix is square, and a power of two")


def mul_mat_id(group: Group) -> None:
    """MUL_MAT_ID: for each token and each expert that it asks, one product."""
    experts, right, ids = group.source(0), group.source(1), group.source(2)
    group.shape(experts.ne[0] == right.ne[0], "its sources have rows of different length")
    flat = (experts.ne[3] == 1) & (right.ne[3] == 1) & (ids.ne[2] == 1) & (ids.ne[3] == 1)
    group.shape(flat, "its sources have too many dimensions")
    group.shape(ids.ne[1] == right.ne[2], "source 2 does not name the experts of each token")
    group.shape(ids.ne[0] % np.maximum(right.ne[1], 1) == 0, "source 1 cannot be repeated")
    good = group.out.has_shape(experts.ne[1], ids.ne[0], right.ne[2])
    group.shape(good, "its result has not the shape of the product")


def out_prod(group: Group) -> None:
    """OUT_PROD: [n, k] and [m, k] give [n, m]."""
    left, right = group.source(0), group.source(1)
    group.shape(left.ne[1] == right.ne[1], "its sources have different numbers of rows")
    repeats = every(right.ne[2:] % np.maximum(left.ne[2:], 1) == 0)
    equal = every(right.ne[2:] == left.ne[2:])
    plain = left.kinds == right.kinds  # f32; other types are not repeated
    group.shape(np.where(plain, repeats, equal), "source 0 cannot be repeated")
    good = group.out.has_shape(left.ne[0], right.ne[0], right.ne[2], right.ne[3])
    group.shape(good, "its result has not the shape of the product")


def solve_tri(group: Group) -> None:
    """SOLVE_TRI: a square matrix and right-hand sides."""
    matrix, right = group.source(0), group.source(1)
    group.shape(matrix.ne[0] == matrix.ne[1], "source 0 is not square")
    good = every(matrix.ne[1:] == right.ne[1:])
    group.shape(good, "its sources do not fit each other")
