"""Graph bodies: what is refused, by name and rule, and that what is accepted computes right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from ringline.errors import RefusedError
from ringline.ggml.devices import cpu_device
from ringline.ggml.layout import OP_COUNT, Status
from ringline.ggml.types import tables
from ringline.server.buffers import Registry
from ringline.server.graphs import build_graph
from ringline.server.ops import least_sources
from ringline.wire.tensor import Tensor
from tests.server_client import Block, addition, floats, graph_body, op

NONE = (0,) * 10


def source(*numbers: int) -> tuple[int, ...]:
    return (*numbers, *NONE[len(numbers) :])


class Bench:
    """A session's registry with one CPU buffer, and the way to compute."""

    def __init__(self) -> None:
        self.device = cpu_device()
        self.registry = Registry(7)
        self.buffer = self.registry.add(0, self.device.alloc_buffer(1 << 16))
        self.block = Block(self.buffer.handle, self.buffer.base, self.buffer.size)

    def build(self, nodes: list[int], tensors: list[Tensor]) -> None:
        build_graph(graph_body(nodes, tensors), self.registry)

    def compute(self, nodes: list[int], tensors: list[Tensor]) -> Status:
        stored = build_graph(graph_body(nodes, tensors), self.registry)
        backend = self.device.open(1)
        try:
            return backend.compute(stored.graph.address)
        finally:
            backend.close()

    def bytes_of(self, tensor: Tensor) -> memoryview:
        region = self.registry.resolve(tensor.pack())
        return region.part(0, region.size)


@pytest.fixture
def bench() -> Iterator[Bench]:
    bench = Bench()
    yield bench
    bench.registry.free(bench.buffer.handle, 0)


def test_a_sum_is_computed(bench):
    left, right, total = addition(bench.block)
    bench.bytes_of(left)[:] = floats(*range(8))
    bench.bytes_of(right)[:] = floats(*[1] * 8)
    assert bench.compute([3], [left, right, total]) is Status.SUCCESS
    assert bytes(bench.bytes_of(total)) == floats(*range(1, 9))


def test_the_order_of_records_and_ids_does_not_matter(bench):
    left, right, total = addition(bench.block)
    ids = {1: 0xFFFF_FFFF_FFFF_FFFF, 2: 5, 3: 0x7FFF_0000_0000}
    tensors = [
        replace(t, id=ids[t.id], src=tuple(ids.get(s, 0) for s in t.src))
        for t in (total, left, right)
    ]
    bench.bytes_of(left)[:] = floats(*[2] * 8)
    bench.bytes_of(right)[:] = floats(*[3] * 8)
    assert bench.compute([ids[3]], tensors) is Status.SUCCESS
    assert bytes(bench.bytes_of(total)) == floats(*[5] * 8)


def test_views_and_results_in_place_are_computed(bench):
    """A view into the left half of a vector, scaled in place: both keep their place."""
    whole = bench.block.vector(1, 8)
    viewing = {"view_src": 1, "view_offs": 16}
    half = bench.block.vector(2, 4, at=16, op=op("VIEW"), src=source(1), **viewing)
    by_ten = floats(10, 0).ljust(64, b"\0")
    scaled = bench.block.vector(
        3, 4, at=16, op=op("SCALE"), src=source(2), op_params=by_ten, **viewing
    )
    bench.bytes_of(whole)[:] = floats(*range(8))
    assert bench.compute([2, 3], [whole, half, scaled]) is Status.SUCCESS
    assert bytes(bench.bytes_of(whole)) == floats(0, 1, 2, 3, 40, 50, 60, 70)


def test_a_cast_names_itself_as_its_second_source(bench):
    """ggml_cast() builds a CPY whose second source is the result itself."""
    original = bench.block.vector(1, 8)
    cast = bench.block.vector(2, 8, at=1024, op=op("CPY"), src=source(1, 2))
    bench.bytes_of(original)[:] = floats(*range(8))
    assert bench.compute([2], [original, cast]) is Status.SUCCESS
    assert bytes(bench.bytes_of(cast)) == floats(*range(8))


def test_a_node_without_op_buffer_and_data_is_no_work(bench):
    foreign = Tensor(9, 0, 0xDEAD, (1, 1, 1, 1), (4, 4, 4, 4))
    assert bench.compute([9], [foreign]) is Status.SUCCESS
    empty_session = Registry(8)
    assert build_graph(graph_body([9], [foreign]), empty_session)


def test_a_name_without_an_end_gets_one(bench):
    left, right, total = addition(bench.block)
    body = graph_body([3], [left, right, total])
    raw = bytearray(body.pack())
    raw[-68:-4] = b"n" * 64  # the name of the last record
    stored = build_graph(type(body).unpack(raw), bench.registry)
    assert stored.graph._block["name"][2] == b"n" * 63


def change(number: int, **fields: object) -> Callable[[list[Tensor]], list[Tensor]]:
    """A way to spoil one of the tensors of a sum."""
    return lambda tensors: [replace(t, **fields) if t.id == number else t for t in tensors]


SPOILT = {
    "an id of 0": (change(1, id=0), "its id is 0"),
    "an id twice": (lambda ts: [*ts, replace(ts[0], name="again")], "has the same id"),
    "an unknown source": (change(3, src=source(1, 77)), "a source of it is not in the graph"),
    "an unknown view": (change(1, view_src=77), "a view source of it is not in the graph"),
    "a type that is none": (change(2, type=4), "its type is no tensor type"),
    "a type out of the table": (change(2, type=1 << 31), "its type is no tensor type"),
    "half a block": (change(2, type=2, ne=(48, 1, 1, 1)), "no whole blocks"),
    "a shape that wraps": (change(2, ne=((1 << 32) - 1,) * 4), "its shape is too large"),
    "an op out of the table": (change(3, op=OP_COUNT), "its op is none of ggml's"),
    "an op with a pointer": (change(3, op=op("MAP_CUSTOM1")), "carries a function pointer"),
    "a source too few": (change(3, src=source(1)), "it lacks a source that its op needs"),
    "no source at all": (change(3, src=NONE), "it lacks a source that its op needs"),
    "data before the buffer": (change(2, data=5), "its data is outside its buffer"),
    "data at the end of addresses": (change(2, data=(1 << 64) - 8), "its data is outside"),
    "an unknown buffer": (change(2, buffer=0xBAD), "invalid data ptr"),
    "data without a buffer": (change(2, buffer=0), "invalid data ptr"),
    "a result that is nowhere": (change(3, buffer=0, data=0), "it is computed but has no data"),
    "a source that is nowhere": (change(1, buffer=0, data=0), "one of its sources has no data"),
    "a result with odd strides": (change(3, nb=(8, 64, 64, 64)), "not contiguous"),
    "a source that is itself": (change(3, src=source(1, 3)), "before one of its sources"),
    "a view of itself": (change(1, view_src=1), "it is a view of itself"),
}


@pytest.mark.parametrize(("spoil", "rule"), SPOILT.values(), ids=SPOILT.keys())
def test_a_graph_that_breaks_a_rule_is_refused(bench, spoil, rule):
    with pytest.raises(RefusedError, match=rule):
        bench.build([3], spoil(addition(bench.block)))


@pytest.mark.parametrize("name", ["t1", "t3"])
def test_a_refusal_names_the_tensor(bench, name):
    with pytest.raises(RefusedError, match=f"tensor '{name}' "):
        bench.build([3], change(int(name[1]), type=99)(addition(bench.block)))


@pytest.mark.parametrize(
    ("nodes", "rule"),
    [([], "without a node"), ([4], "which no tensor has"), ([0], "no tensor"), ([3, 3], "twice")],
)
def test_a_list_of_nodes_that_breaks_a_rule_is_refused(bench, nodes, rule):
    with pytest.raises(RefusedError, match=rule):
        bench.build(nodes, addition(bench.block))


def test_a_graph_without_tensors_is_refused(bench):
    with pytest.raises(RefusedError, match="which no tensor has"):
        build_graph(graph_body([1], []), bench.registry)


def test_nodes_stand_after_their_sources(bench):
    left, right, total = addition(bench.block)
    twice = bench.block.vector(4, 8, at=1024, op=op("ADD"), src=source(3, 3))
    bench.build([3, 4], [left, right, total, twice])
    with pytest.raises(RefusedError, match=r"tensor 't4' .*before one of its sources"):
        bench.build([4, 3], [left, right, total, twice])


def chain(block: Block, views: dict[int, int]) -> list[Tensor]:
    return [block.vector(i, 1, view_src=seen) for i, seen in views.items()]


def test_chains_of_views_end(bench):
    n = 3000
    deep = {1: 0} | {i: i - 1 for i in range(2, n + 1)}
    bench.build([n], chain(bench.block, deep))
    with pytest.raises(RefusedError, match="a view of itself"):
        bench.build([n], chain(bench.block, deep | {1: n}))


def test_a_view_is_where_the_tensor_that_it_views_says(bench):
    whole = bench.block.vector(1, 8)
    half = bench.block.vector(2, 4, at=16, op=op("VIEW"), src=source(1), view_src=1, view_offs=16)
    bench.build([2], [whole, half])
    with pytest.raises(RefusedError, match="not where the tensor that it views says"):
        bench.build([2], [whole, replace(half, view_offs=12)])


def test_every_op_has_a_least_number_of_sources():
    by_name = dict(zip(tables().op_names, least_sources().tolist(), strict=True))
    known = {"NONE": 0, "UNARY": 1, "GLU": 1, "SOFT_MAX": 1, "MUL_MAT": 2, "ROPE": 2, "CPY": 2}
    known |= {"SET_ROWS": 3, "FLASH_ATTN_EXT": 3, "MUL_MAT_ID": 3, "SSM_SCAN": 7, "ADD_ID": 3}
    assert {name: by_name[name] for name in known} == known


def test_the_names_in_our_list_of_ops_are_ggmls():
    """A misspelt name would count as an op of one source."""
    from ringline.server import ops

    lists = (ops._NONE, ops._TWO, ops._THREE, ops._FOUR, ops._FIVE, ops._SIX, ops._SEVEN)
    names = " ".join(lists).split()
    assert sorted(set(names)) == sorted(names)
    assert set(names) <= set(tables().op_names)


def test_a_freed_buffer_makes_a_stored_graph_stale(bench):
    other = bench.registry.add(0, bench.device.alloc_buffer(64))
    stored = build_graph(graph_body([3], addition(bench.block)), bench.registry)
    assert stored.generation == bench.registry.generation
    bench.registry.free(other.handle, 0)
    assert stored.generation != bench.registry.generation


def test_a_large_graph_is_one_of_arrays(bench):
    """Ten thousand sums in a row: nothing in here may recurse or cost the square."""
    n = 10_000
    tensors = [bench.block.vector(1, 8)]
    tensors += [
        bench.block.vector(i, 8, at=32 * (i % 2), op=op("ADD"), src=source(i - 1, i - 1))
        for i in range(2, n)
    ]
    stored = build_graph(graph_body(list(range(2, n)), tensors), bench.registry)
    assert np.count_nonzero(stored.graph._used) > 0
