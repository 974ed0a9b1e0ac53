"""Graphs between C and numpy: nothing is lost on the way out, and what we build computes."""

from __future__ import annotations

import numpy as np
import pytest

from ringline.ggml.devices import cpu_device
from ringline.ggml.graph import BuiltGraph, gather
from ringline.ggml.layout import TENSOR, Status
from ringline.ggml.library import InitParams, load
from ringline.ggml.memory import record_at

F32 = 0
COMPUTE = 16  # GGML_TENSOR_FLAG_COMPUTE: without it ggml skips the node


@pytest.fixture
def context():
    ggml = load()
    address = ggml.init(InitParams(1 << 20, None, True))
    yield address
    ggml.free(address)


def walk(address: int, seen: dict[int, str]) -> None:
    """What a graph reaches, tensor by tensor: the slow way, as llama.cpp does it."""
    if not address or address in seen:
        return
    tensor = record_at(address, TENSOR)[0]
    seen[address] = str(tensor)
    for source in (*tensor["src"].tolist(), int(tensor["view_src"])):
        walk(source, seen)


def chain(context: int, length: int) -> tuple[int, int]:
    """A graph of additions and views; its address and that of its last tensor."""
    ggml = load()
    last = ggml.new_tensor_4d(context, F32, 8, 1, 1, 1)
    for _ in range(length):
        other = ggml.new_tensor_4d(context, F32, 16, 1, 1, 1)
        last = ggml.add(context, last, ggml.view_1d(context, other, 8, 32))
    graph = ggml.new_graph_custom(context, 512, False)
    ggml.build_forward_expand(graph, last)
    return graph, last


def test_gather_finds_what_a_walk_finds(context):
    graph, last = chain(context, 100)
    seen: dict[int, str] = {}
    walk(last, seen)
    found = gather(graph)
    assert found.addresses.tolist() == sorted(seen)
    assert [str(tensor) for tensor in found.tensors] == [seen[a] for a in sorted(seen)]


def test_gather_reads_use_counts_and_order(context):
    graph, last = chain(context, 3)
    found = gather(graph)
    counts = dict(zip(found.addresses.tolist(), found.use_counts.tolist(), strict=True))
    assert found.nodes[-1] == last
    assert counts[last] == 0
    assert [counts[int(node)] for node in found.nodes[:-1]] == [1] * (len(found.nodes) - 1)


def test_a_graph_of_arrays_computes_like_one_of_c():
    add = next(op for op in range(20) if load().op_name(op) == b"ADD")
    device = cpu_device()
    buffer = device.alloc_buffer(3 * 64)
    assert buffer is not None
    values = np.frombuffer(buffer.view(buffer.base, 192), np.float32).reshape(3, 16)
    values[0], values[1] = np.arange(16), 100
    tensors = np.zeros(3, TENSOR)
    tensors["ne"], tensors["nb"] = (16, 1, 1, 1), (4, 64, 64, 64)
    tensors["buffer"] = buffer.address
    tensors["data"] = buffer.base + 64 * np.arange(3)
    tensors["op"][2], tensors["flags"][2] = add, COMPUTE
    sources = np.full((3, 10), -1)
    sources[2, :2] = 0, 1
    views, nodes = np.full(3, -1), np.array([2])
    graph = BuiltGraph(tensors, sources, views, nodes, np.zeros(1, np.int32))
    backend = device.open(1)
    try:
        assert backend.compute(graph.address) is Status.SUCCESS
        assert values[2].tolist() == [100.0 + n for n in range(16)]
    finally:
        backend.close()
        buffer.close()
