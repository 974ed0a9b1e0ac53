"""Rows as f32 are those of ggml's own GET_ROWS, computed as a graph, bit by bit."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ringline.ggml.layout import TYPE_COUNT, Status
from ringline.ggml.rows import dequantise_into, dequantise_rows, has_rows, row_size
from ringline.ggml.types import tables
from ringline.wire.tensor import Tensor
from tests.server_client import op
from tests.test_server_graphs import Bench, source

WIDTH, N_ROWS, IDS = 256, 9, [8, 0, 3, 3]
F32, F16, I32, BF16 = 0, 1, 26, 30
KINDS = [kind for kind in range(TYPE_COUNT) if has_rows(kind)]
MUST_HAVE = {"f32", "f16", "bf16", "q4_0", "q4_1", "q8_0", "q4_K", "q6_K"}


def name_of(kind: int) -> str:
    return tables().type_names[kind]


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.registry.free(bench.buffer.handle, 0)


def get_rows(bench: Bench, kind: int, width: int, data: bytes, ids: list[int]) -> bytes:
    """What ggml computes."""
    step = row_size(kind, width)
    n_rows = len(data) // step
    table = Tensor(
        1,
        kind,
        bench.block.handle,
        (width, n_rows, 1, 1),
        (int(tables().size[kind]), step, len(data), len(data)),
        data=bench.block.base,
    )
    rows = replace(bench.block.vector(2, len(ids), at=32768), type=I32)
    whole = 4 * width * len(ids)
    out = replace(
        bench.block.vector(3, 1, at=36864, op=op("GET_ROWS"), src=source(1, 2)),
        ne=(width, len(ids), 1, 1),
        nb=(4, 4 * width, whole, whole),
    )
    bench.bytes_of(table)[:] = data
    bench.bytes_of(rows)[:] = np.array(ids, np.int32).tobytes()
    assert bench.compute([3], [table, rows, out]) is Status.SUCCESS
    return bytes(bench.bytes_of(out))


def test_the_types_of_models_have_rows():
    assert {name_of(kind) for kind in KINDS} >= MUST_HAVE


@pytest.mark.parametrize("kind", KINDS, ids=name_of)
def test_rows_are_those_of_get_rows_bit_by_bit(bench, kind):
    step = row_size(kind, WIDTH)
    data = np.random.default_rng(kind).bytes(step * N_ROWS)
    if kind == F16:  # the backend's own conversion may make a signalling NaN a quiet one
        data = np.random.default_rng(5).normal(size=WIDTH * N_ROWS).astype(np.float16).tobytes()
    found = dequantise_rows(kind, memoryview(data), step, IDS)
    assert found == get_rows(bench, kind, WIDTH, data, IDS)
    assert found[-4 * WIDTH :] == found[-8 * WIDTH : -4 * WIDTH]  # id 3 twice
    assert found[: 4 * WIDTH] != found[4 * WIDTH : 8 * WIDTH]


def test_every_f16_that_is_a_number_is_as_get_rows_makes_it(bench):
    values = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    values = values[~np.isnan(values)]
    for part in np.array_split(values, 16):
        data = part.tobytes()
        found = dequantise_rows(F16, memoryview(data), len(data), [0])
        assert found == get_rows(bench, F16, len(part), data, [0])


def test_rows_are_written_in_place_and_nothing_beside_them():
    data = np.arange(12, dtype=np.float32).tobytes()
    out = bytearray(b"\xaa" * 64)
    dequantise_into(F32, 4, memoryview(data), [2, 0], memoryview(out)[8:40])
    expected = np.array([8, 9, 10, 11, 0, 1, 2, 3], np.float32).tobytes()
    assert bytes(out) == b"\xaa" * 8 + expected + b"\xaa" * 24


def test_no_rows_are_no_bytes():
    assert dequantise_rows(BF16, memoryview(bytes(64)), 64, []) == b""


@pytest.mark.parametrize("kind", [-1, 4, I32, TYPE_COUNT, 1 << 31])
def test_what_is_no_type_of_weights_has_no_rows(kind):
    assert not has_rows(kind)


def test_a_row_holds_whole_blocks():
    assert row_size(2, 64) == 36
    assert row_size(2, 48) is None
