"""What one session may hold: memory, stored graphs, connections, frames. The session lives on."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ringline.errors import RefusedError
from ringline.ggml.devices import cpu_device
from ringline.server.buffers import Registry
from ringline.server.graph_room import GraphRoom
from ringline.server.graphs import build_graph
from ringline.wire.commands import RULES, Command
from ringline.wire.frames import REQUEST_HEADER
from ringline.wire.messages import AllocBuffer, FreeBuffer
from tests.peers.processes import Peer, ringline_node
from tests.raw_nodes import endpoint_of, raw_node, read_banner
from tests.server_client import Block, Client, addition, floats, graph_body

MOST = 1 << 20


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--device=CPU", "--threads=1", f"--most-memory={MOST}") as node:
        yield node


def test_memory_beyond_the_limit_is_refused_by_its_flag_and_the_session_goes_on(node):
    with Client.extended(node.endpoint) as client:
        first = client.alloc(MOST * 3 // 4)
        with pytest.raises(RefusedError, match=rf"that this session holds .*{MOST}.*--most-memory"):
            client.call(AllocBuffer(0, MOST // 2))
        small = client.alloc(64)
        client.write(small.vector(1, 16), floats(*range(16)))
        assert client.read(small.vector(1, 16), 64) == floats(*range(16))
        client.post(FreeBuffer(first.handle))
        assert client.alloc(MOST // 2).size == MOST // 2


def test_a_stock_client_gets_the_null_buffer_and_goes_on(node):
    with Client.stock(node.endpoint) as client:
        reply = AllocBuffer.Reply.unpack(client.call(AllocBuffer(0, MOST + 64)))
        assert (reply.handle, reply.size) == (0, 0)
        assert client.alloc(MOST // 2).handle
    assert "--most-memory" in node.log()


def test_one_session_does_not_use_up_what_another_one_may_hold(node):
    with Client.extended(node.endpoint) as one, Client.extended(node.endpoint) as other:
        assert one.alloc(MOST).size == other.alloc(MOST).size == MOST


def test_all_buffers_on_a_device_together_are_no_more_than_it_has():
    registry = Registry(1)
    allocate = cpu_device().alloc_buffer
    made = registry.make(0, 6000, 10_000, allocate)
    assert registry.make(1, 9000, 10_000, allocate)
    with pytest.raises(RefusedError, match=r"than the 10000 of the device") as refusal:
        registry.make(0, 4001, 10_000, allocate)
    assert refusal.value.rule == "limit-memory"
    registry.free(made.handle, 0)
    assert registry.make(0, 10_000, 10_000, allocate)


def test_two_that_are_made_at_once_do_not_share_the_room():
    registry, allocate = Registry(1, most=10_000), cpu_device().alloc_buffer

    def slowly(size):
        with pytest.raises(RefusedError, match="--most-memory"):
            registry.make(0, 6000, 1 << 30, allocate)
        return allocate(size)

    assert registry.make(0, 6000, 1 << 30, slowly)
    assert registry.make(0, 4000, 1 << 30, lambda size: None) is None
    assert registry.make(0, 4000, 1 << 30, allocate)  # what failed keeps no room


def test_stored_graphs_have_a_limit_until_they_are_forgotten():
    registry = Registry(1)
    made = registry.add(0, cpu_device().alloc_buffer(4096))
    body = graph_body([3], addition(Block(made.handle, made.base, made.size)))
    room = GraphRoom(most=2000)
    room.check(body)
    stored = build_graph(body, registry)
    room.take(body, stored)
    with pytest.raises(RefusedError, match=r"of stored graphs .* may store") as refusal:
        room.check(body)
    assert refusal.value.rule == "limit-graphs"
    del stored
    gc.collect()
    room.check(body)
    registry.free(made.handle, 0)


def test_a_graph_beyond_the_limit_is_refused_and_a_smaller_one_computed():
    prelude = (
        "from ringline.server.graph_room import GraphRoom\n"
        "GraphRoom.__init__.__defaults__ = (2000,)"
    )
    with raw_node("--device=CPU", "--threads=1", prelude=prelude) as process:
        endpoint = endpoint_of(read_banner(process))
        with Client.extended(endpoint) as client, client.attach(endpoint) as other:
            block = client.alloc(4096)
            small = addition(block)
            many = [*small, *(block.vector(number, 8) for number in range(10, 20))]
            client.compute([3], many)
            with pytest.raises(RefusedError, match="may store"):
                client.ping()
            client.compute([3], small)
            client.ping()
            other.compute([3], small)
            with pytest.raises(RefusedError, match="may store"):
                other.ping()


@pytest.mark.parametrize("command", sorted(RULES.keys() - {Command.HELLO, Command.EXT_HELLO}))
def test_a_frame_beyond_its_limit_is_refused_before_room_is_made(node, command):
    """Nothing of the body is sent: the node cannot have waited for it."""
    with Client.extended(node.endpoint, level=5) as client:
        size = RULES[command].most + 1
        client.stream.send([REQUEST_HEADER.pack(command, size)])
        with pytest.raises(RefusedError, match=rf"{command.name}: a body of {size} bytes where"):
            client.reply()
        assert client.closed()
