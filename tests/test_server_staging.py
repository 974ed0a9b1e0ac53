"""Devices without host memory: data passes through staging memory, in pieces.

A CPU buffer plays such a device: ggml's own functions move the data, as they would for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest

from ringline.errors import RefusedError
from ringline.ggml.devices import Buffer, cpu_device
from ringline.server.buffers import Registry
from ringline.server.handlers import tensors
from ringline.wire.messages import CopyTensor, GetTensor, MemsetTensor, SetTensor
from ringline.wire.tensor import Tensor


@pytest.fixture
def context() -> Iterator[SimpleNamespace]:
    registry = Registry(1)
    made = cpu_device().alloc_buffer(1 << 16)
    added = registry.add(0, Buffer(made.address, host=False))
    yield SimpleNamespace(registry=registry, buffer=added)
    registry.free(added.handle, 0)


def vector(context: SimpleNamespace, n: int, at: int = 0) -> bytes:
    buffer, whole = context.buffer, 4 * n
    shape = {"ne": (n, 1, 1, 1), "nb": (4, whole, whole, whole)}
    return Tensor(1, 0, buffer.handle, data=buffer.base + at, **shape).pack()


def write(context: SimpleNamespace, raw: bytes, data: bytes, offset: int) -> int:
    """Play the connection: fill each place with the next bytes; returns how many there were."""
    position = n_places = 0
    for place in tensors.set_tensor(SetTensor(raw, 0, offset), len(data), context):
        place[:] = data[position : position + len(place)]
        position += len(place)
        n_places += 1
    assert position == len(data)
    return n_places


def test_data_larger_than_the_staging_memory_arrives_in_pieces(context, monkeypatch):
    monkeypatch.setattr(tensors, "STAGING", 1000)
    assert context.buffer.memory is None
    raw, data = vector(context, 1000, at=64), np.random.default_rng(3).bytes(3500)
    assert write(context, raw, data, offset=100) == 4
    (read,) = tensors.get_tensor(GetTensor(raw, 100, 3500), context)
    assert read == data


def test_no_data_needs_no_place(context):
    assert write(context, vector(context, 4), b"", offset=16) == 0


def test_filling_and_copying_go_through_ggml(context):
    src, dst = vector(context, 4), vector(context, 4, at=1024)
    tensors.memset_tensor(MemsetTensor(src, 0, 16, 5), context)
    tensors.memset_tensor(MemsetTensor(src, 4, 4, 6), context)
    assert tensors.copy_tensor(CopyTensor(src, dst), context).value == 1
    (read,) = tensors.get_tensor(GetTensor(dst, 0, 16), context)
    assert read == b"\x05" * 4 + b"\x06" * 4 + b"\x05" * 8


def test_the_bounds_are_the_same(context):
    raw = vector(context, 4)
    with pytest.raises(RefusedError, match="outside its 16 bytes"):
        write(context, raw, bytes(17), offset=0)
    with pytest.raises(RefusedError, match="outside its 16 bytes"):
        tensors.get_tensor(GetTensor(raw, 16, 1), context)
