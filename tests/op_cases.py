"""A small good graph for each op that a node computes: one node, and the sources that it needs."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from ringline.ggml.types import tables
from ringline.wire.graph import GraphBody
from ringline.wire.tensor import RECORD, Tensor
from tests.server_client import COMPUTE_FLAG, Block, op

__all__ = ["CASES", "Case", "Spec", "graph_of", "new"]

#: each tensor gets so many bytes of the block.
ROOM = 1 << 16


@dataclass(frozen=True)
class Spec:
    """A tensor to be: its type by name, its shape, and its strides where they are not plain."""

    kind: str
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int] | None = None


@dataclass(frozen=True)
class Case:
    """One node: what it makes of which sources, with which parameters."""

    op: str
    out: Spec
    sources: Sequence[Spec | None]
    params: bytes = b""
    #: the source that the result is a view of.
    inside: int | None = None


def new(kind: str, *ne: int) -> Spec:
    """A tensor with plain strides."""
    return Spec(kind, (*ne, 1, 1, 1)[:4])  # type: ignore[arg-type]


def ints(*values: int) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)


def reals(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


def plain_strides(kind: int, ne: tuple[int, ...]) -> tuple[int, int, int, int]:
    known = tables()
    first = int(known.size[kind])
    second = first * (ne[0] // int(known.block[kind]))
    return first, second, second * ne[1], second * ne[1] * ne[2]


def tensor_of(spec: Spec, number: int, block: Block) -> Tensor:
    """Tensor `number` of a graph, at its own place of the block."""
    kind = tables().type_names.index(spec.kind)
    return Tensor(
        id=number,
        type=kind,
        buffer=block.handle,
        ne=spec.ne,
        nb=spec.nb or plain_strides(kind, spec.ne),
        data=block.base + number * ROOM,
        flags=COMPUTE_FLAG,
        name=f"t{number}",
    )


def graph_of(case: Case, block: Block) -> list[Tensor]:
    """The sources as tensors 1, 2, ...; then the node, whose id is the last."""
    sources = {
        place: tensor_of(spec, place + 1, block)
        for place, spec in enumerate(case.sources)
        if spec is not None
    }
    links = [sources[place].id if place in sources else 0 for place in range(10)]
    number = len(case.sources) + 1
    made = replace(
        tensor_of(case.out, number, block),
        op=op(case.op),
        src=tuple(links),
        op_params=case.params.ljust(64, b"\0"),
    )
    if case.inside is not None:
        whole = sources[case.inside]
        made = replace(made, view_src=whole.id, data=whole.data)
    return [*sources.values(), made]


def body_of(tensors: list[Tensor]) -> GraphBody:
    """The last tensor is the node."""
    records = np.frombuffer(b"".join(tensor.pack() for tensor in tensors), RECORD)
    return GraphBody(0, np.array([tensors[-1].id], np.uint64), records)


def _rope(mode: int = 0, n_dims: int = 8, offset: int = 0, sections: Sequence[int] = ()) -> bytes:
    head = ints(0, n_dims, mode, 0, 128) + reals(10000, 1, 0, 1, 32, 1)
    return head + ints(*(*sections, 0, 0, 0, 0)[:4], offset)


_V = new("f32", 8, 4, 2)
_I = new("i32", 4)
_HEADS = new("f32", 64, 2, 4)
_MASK = new("f16", 4, 4)

_ALL = (
    *(Case(name, _V, [_V, new("f32", 8)]) for name in ("ADD", "SUB", "MUL", "DIV")),
    Case("ADD1", _V, [_V, new("f32", 1)]),
    Case("ADD_ID", _V, [_V, new("f32", 8, 5), new("i32", 4, 2)]),
    Case("ACC", _V, [_V, new("f32", 2, 2)], ints(32, 128, 256, 8, 0)),
    Case("SET", _V, [_V, new("f32", 2, 2)], ints(32, 128, 256, 8, 0)),
    *(Case(name, _V, [_V]) for name in ("SQR", "SQRT", "LOG", "SIN", "COS", "CUMSUM")),
    Case("UNARY", _V, [_V], ints(10)),
    Case("LEAKY_RELU", _V, [_V], reals(0.1)),
    Case("GLU", new("f32", 4, 4, 2), [_V], ints(2, 0)),
    Case("SCALE", _V, [_V], reals(2, 1)),
    Case("CLAMP", _V, [_V], reals(0, 1)),
    Case("FILL", _V, [_V], reals(3)),
    Case("TRI", new("f32", 4, 4), [new("f32", 4, 4)], ints(3)),
    Case("DIAG_MASK_INF", _V, [_V], ints(1)),
    Case("DIAG_MASK_ZERO", _V, [_V], ints(1)),
    *(Case(name, _V, [_V], reals(1e-5)) for name in ("NORM", "RMS_NORM", "L2_NORM")),
    Case("GROUP_NORM", _V, [_V], ints(2) + reals(1e-5)),
    Case("ROLL", _V, [_V], ints(3, 1, 0, 0)),
    Case("SUM", new("f32", 1), [_V]),
    Case("SUM_ROWS", new("f32", 1, 4, 2), [_V]),
    Case("MEAN", new("f32", 1, 4, 2), [_V]),
    Case("ARGMAX", new("i32", 4), [new("f32", 8, 4)]),
    Case("ARGSORT", new("i32", 8, 4, 2), [_V], ints(1)),
    Case("TOP_K", new("i32", 3, 4, 2), [_V]),
    Case("COUNT_EQUAL", new("i64", 1), [_I, _I]),
    Case("REPEAT", new("f32", 16, 4, 2), [_V]),
    Case("REPEAT_BACK", new("f32", 4, 4, 2), [_V]),
    Case("CONCAT", new("f32", 8, 7, 2), [_V, new("f32", 8, 3, 2)], ints(1)),
    Case("DIAG", new("f32", 8, 8), [new("f32", 8)]),
    Case("GET_ROWS", new("f32", 32, 4), [new("q8_0", 32, 5), _I]),
    Case(
        "SET_ROWS",
        new("f16", 8, 5),
        [new("f32", 8, 4), new("i64", 4), new("f16", 8, 5)],
        inside=2,
    ),
    Case("DUP", _V, [_V]),
    Case("CONT", _V, [Spec("f32", (8, 4, 2, 1), (16, 4, 128, 256))]),
    Case("CPY", new("q8_0", 32, 2), [new("f32", 32, 2), new("q8_0", 32, 2)], inside=1),
    Case("MUL_MAT", new("f32", 3, 4, 2), [new("q4_0", 32, 3), new("f32", 32, 4, 2)]),
    Case(
        "MUL_MAT_ID",
        new("f32", 3, 2, 4),
        [new("f32", 8, 3, 5), new("f32", 8, 1, 4), new("i32", 2, 4)],
    ),
    Case("OUT_PROD", new("f32", 3, 5), [new("f32", 3, 4), new("f32", 5, 4)]),
    Case("SOLVE_TRI", new("f32", 3, 4), [new("f32", 4, 4), new("f32", 3, 4)]),
    Case("ROPE", new("f32", 8, 2, 4), [new("f32", 8, 2, 4), _I, new("f32", 4)], _rope()),
    Case("ROPE_BACK", new("f32", 8, 2, 4), [new("f32", 8, 2, 4), _I], _rope(2)),
    Case("SOFT_MAX", new("f32", 4, 3, 2), [new("f32", 4, 3, 2), _MASK, new("f32", 2)], reals(1, 0)),
    Case(
        "FLASH_ATTN_EXT",
        new("f32", 16, 4, 3),
        [new("f32", 8, 3, 4), new("f16", 8, 4, 2), new("f16", 16, 4, 2), _MASK, new("f32", 4)],
        reals(1, 0, 0),
    ),
    Case(
        "LIGHTNING_INDEXER",
        new("f32", 4, 3),
        [new("f32", 8, 2, 3), new("f16", 8, 1, 4), new("f32", 2, 3), new("f16", 4, 3)],
    ),
    Case("SSM_CONV", new("f32", 5, 3, 2), [new("f32", 6, 5, 2), new("f32", 4, 5)]),
    Case(
        "SSM_SCAN",
        new("f32", 2 * 4 * 3 * 2 + 8 * 2 * 4 * 2),
        [
            new("f32", 8, 2, 4, 3),
            new("f32", 2, 4, 3, 2),
            new("f32", 4, 3, 2),
            new("f32", 1, 4),
            new("f32", 8, 2, 3, 2),
            new("f32", 8, 2, 3, 2),
            new("i32", 2),
        ],
        ints(1),
    ),
    Case(
        "RWKV_WKV6",
        new("f32", 128, 4 + 64 * 2),
        [_HEADS, _HEADS, _HEADS, new("f32", 64, 2), _HEADS, new("f32", 64 * 64 * 2, 2)],
    ),
    Case("RWKV_WKV7", new("f32", 128, 4 + 64 * 2), [*[_HEADS] * 6, new("f32", 64 * 64 * 2, 2)]),
    Case(
        "GATED_LINEAR_ATTN",
        new("f32", 128, 4 + 64 * 2),
        [*[_HEADS] * 4, new("f32", 64 * 64 * 2, 2)],
        reals(1),
    ),
    Case(
        "GATED_DELTA_NET",
        new("f32", 16 * 4, 3 * 2 + 16 * 2),
        [
            new("f32", 16, 2, 3, 2),
            new("f32", 16, 2, 3, 2),
            new("f32", 16, 4, 3, 2),
            new("f32", 1, 4, 3, 2),
            new("f32", 1, 4, 3, 2),
            new("f32", 16, 16, 4, 2),
        ],
        ints(1),
    ),
    Case(
        "DSV4_HC_COMB",
        new("f32", 4, 4, 3),
        [new("f32", 24, 3), new("f32", 3), new("f32", 24)],
        reals(1e-6) + ints(2),
    ),
    Case("DSV4_HC_PRE", new("f32", 8, 3), [new("f32", 8, 4, 3), new("f32", 4, 3)], reals(1)),
    Case(
        "DSV4_HC_POST",
        new("f32", 8, 4, 3),
        [new("f32", 8, 3), new("f32", 8, 4, 3), new("f32", 4, 3), new("f32", 4, 4, 3)],
    ),
    Case(
        "IM2COL",
        new("f16", 3 * 2, 5, 2),
        [new("f16", 3, 2), new("f32", 5, 2, 2)],
        ints(1, 0, 1, 0, 1, 0, 0),
    ),
    Case(
        "CONV_2D",
        new("f32", 4, 3, 5, 2),
        [new("f16", 3, 2, 3, 5), new("f32", 6, 4, 3, 2)],
        ints(1, 1, 0, 0, 1, 1),
    ),
    Case(
        "CONV_2D_DW",
        new("f32", 4, 3, 3, 2),
        [new("f16", 3, 2, 1, 3), new("f32", 6, 4, 3, 2)],
        ints(1, 1, 0, 0, 1, 1),
    ),
    Case("COL2IM_1D", new("f32", 9, 2), [new("f32", 10, 4)], ints(2, 2, 1)),
    Case("WIN_PART", new("f32", 8, 3, 3, 6), [new("f32", 8, 7, 5)], ints(3, 2, 3)),
    Case("WIN_UNPART", new("f32", 8, 7, 5), [new("f32", 8, 3, 3, 6)], ints(3)),
    Case("UPSCALE", new("f32", 12, 7, 2), [_V], ints(1)),
    Case("POOL_1D", new("f32", 4, 4, 2), [_V], ints(1, 2, 2, 0)),
    Case("POOL_2D", new("f32", 4, 2, 2), [_V], ints(0, 2, 2, 2, 2, 0, 0)),
    Case("PAD", new("f32", 9, 6, 2), [_V], ints(0, 1, 1, 1, 0, 0, 0, 0, 0)),
    Case("PAD_REFLECT_1D", new("f32", 11, 4, 2), [_V], ints(1, 2)),
    Case("ARANGE", new("f32", 6), [None], reals(0, 3, 0.5)),
    Case("TIMESTEP_EMBEDDING", new("f32", 6, 4), [new("f32", 4)], ints(6, 100)),
    Case("RESHAPE", new("f32", 16, 4), [_V], inside=0),
    Case("VIEW", new("f32", 4, 2), [_V], inside=0),
    Case("PERMUTE", Spec("f32", (4, 8, 2, 1), (32, 4, 128, 256)), [_V], ints(1, 0, 2, 3), inside=0),
    Case("TRANSPOSE", Spec("f32", (4, 8, 2, 1), (32, 4, 128, 256)), [_V], inside=0),
)
CASES = {case.op: case for case in _ALL}
