"""A node killed at any moment: a named error in time, no stale token, and the process lives on."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ringline.client.connection import Connection
from ringline.client.device import RemoteStream
from ringline.errors import NetworkError
from ringline.wire.commands import Command
from tests.peers.process_tree import cut_power
from tests.peers.processes import Peer
from tests.rings import open_peers, run_ring

pytestmark = pytest.mark.model


@pytest.fixture
def nodes():
    with ExitStack() as stack:
        yield open_peers(stack, "rrr")


def assert_a_new_ring_works(model_path, local_ids):
    with ExitStack() as stack:
        run = run_ring("decode", model_path, open_peers(stack, "rr"))
        assert run.ids == local_ids("decode")


def kill_before(monkeypatch, victim: Peer, command: Command, count: int) -> None:
    """Kill `victim` just before our coordinator queues its `count`-th `command` to it."""
    add, seen = Connection._add, [0]

    def counting(self, number, parts):
        if self.peer == victim.endpoint and number is command:
            seen[0] += 1
            if seen[0] == count:
                cut_power(victim)
        return add(self, number, parts)

    monkeypatch.setattr(Connection, "_add", counting)


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize(
    ("workload", "command", "count"),
    [
        pytest.param("decode", Command.SET_TENSOR, 20, id="while-loading"),
        pytest.param("prompt", Command.GRAPH_COMPUTE, 3, id="in-the-prompt"),
        pytest.param("decode", Command.GRAPH_RECOMPUTE, 5, id="while-decoding"),
    ],
)
def test_a_killed_node_is_named(
    victim, workload, command, count, nodes, model_path, local_ids, monkeypatch
):
    with monkeypatch.context() as patch:
        kill_before(patch, nodes[victim], command, count)
        with pytest.raises(NetworkError) as failure:
            run_ring(workload, model_path, nodes)
    assert nodes[victim].endpoint in str(failure.value)
    assert not nodes[victim].alive
    assert_a_new_ring_works(model_path, local_ids)


def test_a_last_node_killed_after_its_last_graph_gives_no_stale_token(
    nodes, model_path, local_ids, monkeypatch
):
    """libllama reports success then: only the check after each decode tells (ggml-facts)."""
    reads, tokens, get_async = [0], [0], RemoteStream.get_async

    def killing(self, tensor, data, offset, size):
        reads[0] += 1
        if reads[0] == 6:
            self.device.node.connection.flush()
            cut_power(nodes[2])
        get_async(self, tensor, data, offset, size)

    def count() -> None:
        tokens[0] += 1

    with monkeypatch.context() as patch:
        patch.setattr(RemoteStream, "get_async", killing)
        with pytest.raises(NetworkError, match=nodes[2].endpoint):
            run_ring("decode", model_path, nodes, after_decode=count)
    assert (reads[0], tokens[0]) == (6, 6)
    assert_a_new_ring_works(model_path, local_ids)


def test_all_nodes_gone_at_once_is_one_error(nodes, model_path, local_ids):
    def kill_all() -> None:
        for node in nodes:
            node.kill()

    with pytest.raises(NetworkError):
        run_ring("decode", model_path, nodes, after_decode=kill_all)
    assert_a_new_ring_works(model_path, local_ids)
