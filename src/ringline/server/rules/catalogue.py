"""The table of ops: types, strides and shapes that can be said in a line.

Read off the constructors in ggml.c and the CPU's kernels in llama-cpp-python 0.3.36. What a
constructor asserts holds on every device; what only the CPU's kernel asserts, or silently assumes,
holds where the device is a CPU, and any other device is asked by supports_op. What needs more than
a line is a function in the files beside this one. An op without an entry is refused.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.layout import MAX_SRC, OP_COUNT
from ringline.ggml.types import tables
from ringline.server.rules.facts import Strides
from ringline.server.rules.kinds import KindTables, compile_kinds

__all__ = ["CATALOGUE", "Catalogue", "catalogue"]


@dataclass(frozen=True, slots=True)
class Entry:
    """What one op demands.

    Attributes:
        kinds: patterns of types that the CPU takes, see kinds.py.
        made: strides that the constructor demands, "0=packed 1=rows".
        cpu: strides that the CPU's kernel demands; `out` is the result.
        like: the source whose shape is the result's; None: a function says it.
        repeats: whether source 1 is repeated to the shape of source 0.
        inside: the source that the result is a view of, where it is one.
    """

    kinds: Sequence[str]
    made: str = ""
    cpu: str = ""
    like: int | None = None
    repeats: bool = False
    inside: int = 0


_SAME: Final = ("f32 f32", "f16 f16", "bf16 bf16", "f32 bf16", "f32 f16")
_PAIR: Final = (
    "f32 f32 f32",
    "= f16|bf16 =",
    "=|f32 f16|bf16 f32",
)
_ROWS: Final = "out=rows 0=rows"

CATALOGUE: Final[Mapping[str, Entry]] = {
    # one result element for one of source 0
    "ADD": Entry((*_PAIR, "=|f32 quantised f32"), cpu=_ROWS, like=0, repeats=True),
    "SUB": Entry(_PAIR, cpu=_ROWS, like=0, repeats=True),
    "MUL": Entry(_PAIR, cpu=_ROWS, like=0, repeats=True),
    "DIV": Entry(_PAIR, cpu=_ROWS, like=0, repeats=True),
    "ADD1": Entry(("f32 f32 f32",), cpu=_ROWS, like=0, repeats=True),
    "ADD_ID": Entry(("f32 f32 f32 i32",), cpu=f"{_ROWS} 1=rows", like=0),
    "ACC": Entry(("f32 f32 f32",), made="0=packed", cpu="out=packed 1=rows", like=0),
    "SET": Entry(("= f32|i32 =",), cpu="out=packed 0=packed 1=rows", like=0),
    "SQR": Entry(_SAME, cpu=_ROWS, like=0),
    "SQRT": Entry(_SAME, cpu=_ROWS, like=0),
    "LOG": Entry(_SAME, cpu=_ROWS, like=0),
    "SIN": Entry(_SAME, cpu=_ROWS, like=0),
    "COS": Entry(_SAME, cpu=_ROWS, like=0),
    "UNARY": Entry(_SAME, cpu=_ROWS, like=0),
    "LEAKY_RELU": Entry(("= f32|f16",), cpu=f"{_ROWS} out=even 0=even", like=0),
    "GLU": Entry(("= float =?",), made="0=even 1=even", cpu="out=even"),
    "SCALE": Entry(("= f32|bf16",), cpu="out=packed 0=packed", like=0),
    "CLAMP": Entry(("= f32|f16",), cpu=f"{_ROWS} out=even 0=even", like=0),
    "FILL": Entry(("= f32|f16",), made="0=packed", cpu="out=rows", like=0),
    "TRI": Entry(("f32 f32",), made="0=packed", cpu="out=rows", like=0),
    "DIAG_MASK_INF": Entry(("f32 f32",), cpu="out=packed 0=packed out=rows 0=rows", like=0),
    "DIAG_MASK_ZERO": Entry(("f32 f32",), cpu="out=packed 0=packed out=rows 0=rows", like=0),
    "NORM": Entry(("f32 f32",), like=0),
    "RMS_NORM": Entry(("f32 f32",), cpu=_ROWS, like=0),
    "L2_NORM": Entry(("f32 f32",), like=0),
    "GROUP_NORM": Entry(("f32 f32",), cpu=_ROWS, like=0),
    "CUMSUM": Entry(("f32 f32",), cpu=_ROWS, like=0),
    "ROLL": Entry(("f32 f32",), cpu=_ROWS, like=0),
    # rows and whole tensors
    "SUM": Entry(("= float",), cpu="0=rows"),
    "SUM_ROWS": Entry(("f32 f32",), cpu=_ROWS),
    "MEAN": Entry(("f32 f32",), cpu="0=rows"),
    "ARGMAX": Entry(("i32 f32",), cpu="0=rows"),
    "ARGSORT": Entry(("i32 f32",), cpu="out=even 0=even 0=rows", like=0),
    "TOP_K": Entry(("i32 f32",), cpu="out=even 0=even 0=rows"),
    "COUNT_EQUAL": Entry(("i64 i32 i32",)),
    "REPEAT": Entry(("= f32|f16|bf16|i32|i16",), cpu=_ROWS),
    "REPEAT_BACK": Entry(("f32 f32",), cpu=_ROWS),
    "CONCAT": Entry(("= any =",)),
    "DIAG": Entry(("f32 f32",), cpu=_ROWS),
    "GET_ROWS": Entry(("f32 float|quantised i32", "i32 i32 i32"), cpu=_ROWS),
    "SET_ROWS": Entry(
        ("from-float|i32 f32 i64|i32 from-float|i32", "from-float|i32 f16 i64|i32 from-float|i32"),
        made="out=rows 0=rows",
        like=2,
        inside=2,
    ),
    # copies; the result of CPY is a view of its second source, or new
    "DUP": Entry(("= any",), like=0),
    "CONT": Entry(("= any",)),
    "CPY": Entry(
        (
            "= any =",
            "float float out",
            "i32 f32 out",
            "f32 i32 out",
            "from-float float out",
            "f32 quantised out",
        ),
        like=1,
        inside=1,
    ),
    # matrices
    "MUL_MAT": Entry(
        (
            "f32 dot f32",
            "f32 f32|f16 f16",
            "f32 f32|bf16 bf16",
            "f32 by-q8_0 q8_0",
            "f32 by-q8_1 q8_1",
            "f32 by-q8_K q8_K",
        ),
        cpu=f"{_ROWS} 1=rows",
    ),
    "MUL_MAT_ID": Entry(
        (
            "f32 dot f32 i32",
            "f32 f16 f16 i32",
            "f32 bf16 bf16 i32",
            "f32 by-q8_0 q8_0 i32",
            "f32 by-q8_1 q8_1 i32",
            "f32 by-q8_K q8_K i32",
        ),
        cpu=f"{_ROWS} 1=rows",
    ),
    "OUT_PROD": Entry(("f32 f32|f16|quantised f32",), cpu=_ROWS),
    "SOLVE_TRI": Entry(("f32 f32 f32",), made="0=packed 1=packed", cpu="out=packed", like=1),
    # attention
    "ROPE": Entry(("= f32|f16 i32 f32?",), cpu=f"{_ROWS} 1=rows 2=rows", like=0),
    "ROPE_BACK": Entry(("= f32|f16 i32 f32?",), cpu=f"{_ROWS} 1=rows 2=rows", like=0),
    "SOFT_MAX": Entry(
        ("f32 f32 f16|f32? f32?",),
        made="0=packed 1=packed",
        cpu=f"{_ROWS} out=packed 1=rows 2=rows",
        like=0,
    ),
    "FLASH_ATTN_EXT": Entry(
        ("f32 f32 dot float|quantised f16? f32?",),
        made="3=packed",
        cpu=f"{_ROWS} 1=rows 2=rows 3=rows 4=rows",
    ),
    "LIGHTNING_INDEXER": Entry(
        ("f32 f32 float|quantised f32 f16",), cpu=f"{_ROWS} 1=rows 2=rows 3=rows"
    ),
    # recurrent
    "SSM_CONV": Entry(("f32 f32 f32",), cpu=f"{_ROWS} 1=rows 1=packed"),
    "SSM_SCAN": Entry(
        ("f32 f32 f32 f32 f32 f32 f32 i32",),
        made="0=packed 2=packed 3=packed",
        cpu="0=exact 1=rows 2=rows 3=rows 4=rows 5=rows 6=rows",
    ),
    "RWKV_WKV6": Entry(
        ("f32 f32 f32 f32 f32 f32 f32",),
        made="0=packed 1=packed 2=packed 3=packed 4=packed 5=packed",
    ),
    "RWKV_WKV7": Entry(
        ("f32 f32 f32 f32 f32 f32 f32 f32",),
        made="0=packed 1=packed 2=packed 3=packed 4=packed 5=packed 6=packed",
    ),
    "GATED_LINEAR_ATTN": Entry(
        ("f32 f32 f32 f32 f32 f32",), made="0=packed 1=packed 2=packed 3=packed 4=packed"
    ),
    "GATED_DELTA_NET": Entry(
        ("f32 f32 f32 f32 f32 f32 f32",), made="0=rows 1=rows 2=rows 3=packed 4=packed 5=packed"
    ),
    "DSV4_HC_COMB": Entry(("f32 f32 f32 f32",)),
    "DSV4_HC_PRE": Entry(("f32 f32 f32",)),
    "DSV4_HC_POST": Entry(("f32 f32 f32 f32 f32?",)),
    # pictures, sound, and what makes new shapes
    "IM2COL": Entry(("f32 any f32", "f16 any f16|f32"), cpu="1=rows"),
    "CONV_2D": Entry(("f32 f32|f16 f32",), cpu="0=packed"),
    "CONV_2D_DW": Entry(("f32 f32|f16 f32",), cpu="0=packed 1=packed"),
    "COL2IM_1D": Entry(("= float",), made="0=packed"),
    "WIN_PART": Entry(("f32 f32",), cpu="0=packed"),
    "WIN_UNPART": Entry(("f32 f32",), cpu="0=packed"),
    "UPSCALE": Entry(("f32 f32",)),
    "POOL_1D": Entry(("f32 f32|f16",), cpu="0=even 0=rows"),
    "POOL_2D": Entry(("f32 f32|f16",), cpu="0=exact"),
    "PAD": Entry(("f32 f32",)),
    "PAD_REFLECT_1D": Entry(("f32 f32",), made="0=packed", cpu="0=rows"),
    "ARANGE": Entry(("f32 -",)),
    "TIMESTEP_EMBEDDING": Entry(("f32 f32",), cpu="0=rows"),
    # views
    "NONE": Entry(("any any? any? any? any? any? any? any? any? any? any?",)),
    "RESHAPE": Entry(("= any",), made="0=packed"),
    "VIEW": Entry(("= any",)),
    "PERMUTE": Entry(("= any",)),
    "TRANSPOSE": Entry(("= any",)),
}


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The table as arrays by number of the op.

    Attributes:
        kinds: which types it takes.
        known: whether it has an entry.                      # [OP_COUNT] bool
        strides: flags of Strides, of result and sources.    # [OP_COUNT, 1 + MAX_SRC] u8
        like: the source whose shape it has, or -1.          # [OP_COUNT] i64
        repeats: whether source 1 is repeated to source 0.   # [OP_COUNT] bool
        inside: the source that it is a view of, if it is.   # [OP_COUNT] i64
    """

    kinds: KindTables
    known: npt.NDArray[np.bool_]
    strides: npt.NDArray[np.uint8]
    like: npt.NDArray[np.int64]
    repeats: npt.NDArray[np.bool_]
    inside: npt.NDArray[np.int64]


@functools.cache
def catalogue(*, on_cpu: bool) -> Catalogue:
    """The table for a CPU, or for any other device."""
    entries = [CATALOGUE.get(name) for name in tables().op_names]
    strides = np.zeros((OP_COUNT, 1 + MAX_SRC), np.uint8)
    for op, entry in enumerate(entries):
        for place, flags in _demands(entry, on_cpu=on_cpu):
            strides[op, place] |= flags
    likes = [entry.like if entry else None for entry in entries]
    return Catalogue(
        kinds=compile_kinds(
            {
                name: entry.kinds if on_cpu else [_widened(line) for line in entry.kinds]
                for name, entry in CATALOGUE.items()
            }
        ),
        known=np.array([entry is not None for entry in entries], np.bool_),
        strides=strides,
        like=np.array([-1 if like is None else like for like in likes], np.int64),
        repeats=np.array([entry is not None and entry.repeats for entry in entries], np.bool_),
        inside=np.array([entry.inside if entry else 0 for entry in entries], np.int64),
    )


def _demands(entry: Entry | None, *, on_cpu: bool) -> list[tuple[int, int]]:
    """Place (0 is the result) and flags of each demand on strides."""
    if entry is None:
        return []
    words = [*entry.made.split(), *(entry.cpu.split() if on_cpu else ())]
    pairs = [word.split("=") for word in words]
    return [
        (0 if place == "out" else 1 + int(place), int(Strides[flag.upper()]))
        for place, flag in pairs
    ]


def _widened(line: str) -> str:
    """A pattern for devices that are no CPUs: their own kernels say which floats they take."""

    def widen(word: str) -> str:
        if word == "-" or all(part in ("i32", "i64") for part in word.split("|")):
            return word
        return "any?" if word.endswith("?") else "any"

    return " ".join(map(widen, line.split()))
