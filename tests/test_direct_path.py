"""Hidden states from node to node: which path ran is counted, the ids never change."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from ringline.client.edge import Path
from tests.peers.forwarder import forwarder
from tests.peers.processes import ringline_node
from tests.rings import open_peers, run_ring

pytestmark = pytest.mark.model


def port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2])


def test_a_chain_of_three_runs_both_edges_directly(model_path, local_ids):
    with ExitStack() as stack:
        nodes = open_peers(stack, "rrr")
        run = run_ring("decode", model_path, nodes, path=Path.DIRECT)
        assert run.ids == local_ids("decode")
        assert set(run.paths) == {"direct"}
        copies = [run.nodes[node.endpoint].commands.get("COPY_TENSOR_TO", 0) for node in nodes]
        assert copies[0] == copies[1] > 0
        assert copies[2] == 0
        reads = [run.nodes[node.endpoint].commands.get("GET_TENSOR", 0) for node in nodes]
        assert reads[:2] == [0, 0]


@pytest.mark.parametrize("workload", ["decode", "prompt"])
def test_the_hub_can_be_forced_by_either_variable(workload, model_path, local_ids, monkeypatch):
    with ExitStack() as stack:
        nodes = open_peers(stack, "rr")
        for name in ("RINGLINE_P2P", "GGML_RPC_P2P"):
            with monkeypatch.context() as patch:
                patch.setenv(name, "0")
                run = run_ring(workload, model_path, nodes)
            assert run.ids == local_ids(workload)
            assert set(run.paths) == {"hub"}


def test_a_stock_destination_gets_its_hidden_states_through_the_hub(model_path, local_ids):
    with ExitStack() as stack:
        run = run_ring("decode", model_path, open_peers(stack, "rs"))
        assert run.ids == local_ids("decode")
        assert set(run.paths) == {"hub"}


@pytest.mark.parametrize("path", [Path.DIRECT, Path.RENDEZVOUS])
def test_an_unreachable_destination_gets_them_through_the_hub(path, model_path, local_ids):
    """The coordinator came in before the way was closed; the source node does not get through."""
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        run = run_ring(
            "decode",
            model_path,
            [source, proxy.endpoint],
            path=path,
            before=lambda ring: proxy.refuse(),
        )
        assert run.ids == local_ids("decode")
        assert set(run.paths) == {"hub"}


def test_a_deaf_destination_costs_one_deadline_and_then_takes_the_hub(model_path, local_ids):
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        run = run_ring(
            "decode",
            model_path,
            [source, proxy.endpoint],
            before=lambda ring: proxy.go_deaf(),
        )
        assert run.ids == local_ids("decode")
        assert set(run.paths) == {"hub"}


def test_a_source_that_may_not_dial_the_destination_uses_the_hub(model_path, local_ids):
    with ExitStack() as stack:
        source = stack.enter_context(ringline_node("--threads=1", "--allow-peer=192.0.2.0/24"))
        (target,) = open_peers(stack, "r")
        run = run_ring("decode", model_path, [source, target])
        assert run.ids == local_ids("decode")
        assert set(run.paths) == {"hub"}


def test_a_destination_restarted_between_two_runs_is_found_again(model_path, local_ids):
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        first = run_ring("decode", model_path, [source, target])
        target.kill()
        again = stack.enter_context(ringline_node("--threads=1", port=port(target.endpoint)))
        assert again.endpoint == target.endpoint
        second = run_ring("decode", model_path, [source, again])
        assert first.ids == second.ids == local_ids("decode")
        assert set(first.paths) == set(second.paths) == {"rendezvous"}
