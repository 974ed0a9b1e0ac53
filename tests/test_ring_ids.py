"""The yardstick: greedy ids equal those of the local CPU, whoever drives and whoever computes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ringline.client.edge import Path
from tests.peers.processes import Peer, run_stock_client
from tests.peers.workloads import WORKLOADS
from tests.rings import open_peers, run_ring

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, list[Peer]]]:
    """Three ringline nodes and two stock servers, for all tests of this file."""
    with ExitStack() as stack:
        yield {"r": open_peers(stack, "rrr"), "s": open_peers(stack, "ss")}


def mixed(peers: dict[str, list[Peer]], kinds: str) -> list[Peer]:
    """A ring of peers, a letter each; every letter takes the next peer of its kind."""
    left = {kind: iter(found) for kind, found in peers.items()}
    return [next(left[kind]) for kind in kinds]


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kinds", ["r", "rr", "rrr"])
def test_the_stock_client_on_ringline_nodes(workload, kinds, peers, model_path, local_ids):
    result = run_stock_client(workload, model_path, mixed(peers, kinds))
    assert result["ids"] == local_ids(workload)


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kinds", ["s", "ss"])
def test_ringline_on_stock_servers(workload, kinds, peers, model_path, local_ids):
    run = run_ring(workload, model_path, mixed(peers, kinds))
    assert run.ids == local_ids(workload)
    assert set(run.paths) <= {"hub"}


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kinds", ["r", "rr", "rrr"])
@pytest.mark.parametrize("path", [Path.DIRECT, Path.RENDEZVOUS])
def test_ringline_on_ringline_nodes(path, workload, kinds, peers, model_path, local_ids):
    run = run_ring(workload, model_path, mixed(peers, kinds), path=path)
    assert run.ids == local_ids(workload)
    assert set(run.paths) == ({path} if len(kinds) > 1 else set())


@pytest.mark.parametrize("workload", WORKLOADS)
@pytest.mark.parametrize("kinds", ["rsr", "srr"])
def test_a_ring_that_mixes_both(workload, kinds, peers, model_path, local_ids):
    run = run_ring(workload, model_path, mixed(peers, kinds))
    assert run.ids == local_ids(workload)
    assert set(run.paths) == ({"hub"} if kinds == "rsr" else {"hub", "rendezvous"})
