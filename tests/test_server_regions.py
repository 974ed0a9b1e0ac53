"""Tensor records: sizes as ggml counts them, one by one and all at once, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.errors import RefusedError
from ringline.ggml.devices import TensorStruct, cpu_device
from ringline.ggml.layout import TYPE_COUNT
from ringline.ggml.library import load
from ringline.ggml.types import tables
from ringline.server.buffers import Registry
from ringline.server.regions import tensor_size
from ringline.server.structure import tensor_sizes
from ringline.wire.tensor import RECORD, Tensor

U32 = (1 << 32) - 1
KINDS = [kind for kind in range(TYPE_COUNT) if tables().block[kind]]
#: often what models have, sometimes anything.
counts = st.one_of(st.integers(0, 8), st.integers(0, 1 << 14), st.integers(0, U32))
strides = st.one_of(
    st.sampled_from([0, 2, 4, 64, 4096]), st.integers(0, 1 << 20), st.integers(0, U32)
)
four = st.tuples


def by_ggml(kind: int, ne: tuple[int, ...], nb: tuple[int, ...]) -> int:
    struct = TensorStruct()
    struct.record["type"], struct.record["ne"], struct.record["nb"] = kind, ne, nb
    return int(load().nbytes(struct.address))


def by_arrays(kind: int, ne: tuple[int, ...], nb: tuple[int, ...]) -> int:
    def rows(values: object) -> np.ndarray:
        return np.array([values], np.int64)

    (size,) = tensor_sizes(np.zeros(1, RECORD), rows(kind), rows(ne), rows(nb))
    return int(size)


@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    blocks=counts,
    ne=four(counts, counts, counts),
    nb=four(strides, strides, strides, strides),
)
def test_sizes_are_those_of_ggml_one_by_one_and_all_at_once(kind, blocks, ne, nb):
    ne = (min(blocks * int(tables().block[kind]), U32 // 256 * 256), *ne)
    try:
        size = tensor_size(kind, ne, nb)
    except RefusedError:
        with pytest.raises(RefusedError):
            by_arrays(kind, ne, nb)
        return
    assert size == by_ggml(kind, ne, nb)
    assert size == by_arrays(kind, ne, nb)


@pytest.mark.parametrize(
    ("kind", "ne", "nb", "reason"),
    [
        (4, (32, 1, 1, 1), (4, 4, 4, 4), "type"),
        (TYPE_COUNT, (32, 1, 1, 1), (4, 4, 4, 4), "type"),
        (U32, (32, 1, 1, 1), (4, 4, 4, 4), "type"),
        (2, (33, 1, 1, 1), (18, 18, 18, 18), "blocks"),
        (0, (U32, U32, U32, U32), (0, 0, 0, 0), "shape"),
        (0, (U32, U32, 1, 1), (4, U32, 4, 4), "too large"),
    ],
)
def test_what_cannot_be_is_refused_by_both(kind, ne, nb, reason):
    with pytest.raises(RefusedError, match=reason):
        tensor_size(kind, ne, nb)
    with pytest.raises(RefusedError, match=reason):
        by_arrays(kind, ne, nb)


@pytest.fixture
def registry() -> Iterator[Registry]:
    registry = Registry(1)
    yield registry
    for handle in list(registry._buffers):
        registry.free(handle, 0)


def test_a_region_is_the_tensors_memory_and_its_struct_names_the_real_address(registry):
    buffer = registry.add(0, cpu_device().alloc_buffer(4096))
    tensor = Tensor(
        1, 0, buffer.handle, (4, 2, 1, 1), (4, 16, 32, 32), data=buffer.base + 64, name="x"
    )
    region = registry.resolve(tensor.pack())
    assert (region.offset, region.size) == (64, 32)
    region.part(4, 4)[:] = b"abcd"
    assert bytes(buffer.memory[68:72]) == b"abcd"
    record = region.struct().record
    assert int(record["data"]) == buffer.buffer.base + 64
    assert int(record["buffer"]) == buffer.buffer.address
    assert load().nbytes(region.struct().address) == 32


def test_a_tensor_may_fill_its_buffer_to_the_last_byte(registry):
    buffer = registry.add(0, cpu_device().alloc_buffer(4096))
    whole = Tensor(1, 0, buffer.handle, (1024, 1, 1, 1), (4, 4096, 4096, 4096), data=buffer.base)
    assert registry.resolve(whole.pack()).size == buffer.size == 4096


def test_an_empty_tensor_may_stand_at_the_end_but_not_after(registry):
    buffer = registry.add(0, cpu_device().alloc_buffer(4096))
    for data, fine in ((buffer.base + 4096, True), (buffer.base + 4097, False)):
        raw = Tensor(1, 0, buffer.handle, (0, 1, 1, 1), (4, 4, 4, 4), data=data).pack()
        if fine:
            assert registry.resolve(raw).size == 0
        else:
            with pytest.raises(RefusedError, match="outside its buffer"):
                registry.resolve(raw)
