"""How many sources each op of ggml needs at least: an op without them is a null pointer in C.

Read off the constructors in ggml.c of llama-cpp-python 0.3.36. A source that an op can do without
(the mask of SOFT_MAX, the factors of ROPE, the second half of GLU) is not counted.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.types import tables

__all__ = ["least_sources"]

_NONE: Final = "NONE ARANGE"
_TWO: Final = """
    ADD ADD1 ACC SUB MUL DIV SET CPY CONCAT COUNT_EQUAL MUL_MAT OUT_PROD GET_ROWS GET_ROWS_BACK ROPE
    ROPE_BACK SILU_BACK RMS_NORM_BACK SOFT_MAX_BACK CROSS_ENTROPY_LOSS IM2COL IM2COL_BACK IM2COL_3D
    CONV_TRANSPOSE_1D CONV_2D CONV_3D CONV_2D_DW CONV_TRANSPOSE_2D POOL_2D_BACK SSM_CONV SOLVE_TRI
    DSV4_HC_PRE
"""
_THREE: Final = """
    ADD_ID MUL_MAT_ID SET_ROWS FLASH_ATTN_EXT ADD_REL_POS CROSS_ENTROPY_LOSS_BACK OPT_STEP_SGD
    DSV4_HC_COMB DSV4_HC_POST
"""
_FOUR: Final = "FLASH_ATTN_BACK LIGHTNING_INDEXER"
_FIVE: Final = "GATED_LINEAR_ATTN OPT_STEP_ADAMW"
_SIX: Final = "RWKV_WKV6 GATED_DELTA_NET"
_SEVEN: Final = "SSM_SCAN RWKV_WKV7"


@functools.cache
def least_sources() -> npt.NDArray[np.int64]:
    """The least number of sources, by number of the op; 1 for an op that no list names."""
    names = {0: _NONE, 2: _TWO, 3: _THREE, 4: _FOUR, 5: _FIVE, 6: _SIX, 7: _SEVEN}
    by_name = {name: count for count, text in names.items() for name in text.split()}
    return np.array([by_name.pop(name, 1) for name in tables().op_names], np.int64)
