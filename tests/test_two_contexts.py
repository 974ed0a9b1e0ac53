"""Two contexts over one ring, in two threads at once: same ids, and no graph is sent twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from threading import Barrier

import pytest

from ringline.engine.ring_model import PlacedModel
from tests.peers.processes import Peer, patience
from tests.rings import context_for, greedy, open_peers, paths_of, placed, prompts_of

pytestmark = pytest.mark.model

Ids = dict[str, list[int]]


@pytest.fixture(scope="module")
def peers() -> Iterator[dict[str, list[Peer]]]:
    """Three ringline nodes and three stock servers, for all tests of this file."""
    with ExitStack() as stack:
        yield {"r": open_peers(stack, "rrr"), "s": open_peers(stack, "sss")}


def endpoints(peers: dict[str, list[Peer]], kinds: str) -> list[str]:
    left = {kind: iter(found) for kind, found in peers.items()}
    return [next(left[kind]).endpoint for kind in kinds]


def run_together(model: PlacedModel, workloads: list[str], halves: list[slice]) -> Ids:
    """A thread and a context for each workload; each runs its share of the prompts."""
    ready = Barrier(len(workloads), timeout=patience(120))

    def run(workload: str, half: slice) -> Ids:
        with context_for(workload, model) as context:
            n_predict = 16 if workload == "prompt" else 32
            chosen = list(prompts_of(workload, model).items())[half]
            ready.wait()
            found = {name: greedy(context, prompt, n_predict) for name, prompt in chosen}
            ready.wait()  # nobody frees while another one computes: that would cost graphs
            return found

    with ThreadPoolExecutor() as threads:
        first, *others = threads.map(run, workloads, halves)
    return {name: ids for found in (first, *others) for name, ids in found.items()}


@pytest.mark.parametrize("kinds", ["r", "rr", "rrr", "s", "ss", "sss", "rs", "sr", "rsr", "srr"])
def test_two_contexts_at_once_give_local_ids(kinds, peers, model_path, local_ids):
    with placed(model_path, endpoints(peers, kinds)) as model:
        ids = run_together(model, ["decode", "decode"], [slice(0, 2), slice(2, 4)])
        assert ids == local_ids("decode")
        expected = {"r": set(), "s": set(), "rr": {"rendezvous"}, "rrr": {"rendezvous"}}
        mixed = {"srr": {"hub", "rendezvous"}}
        assert set(paths_of(model)) == {**expected, **mixed}.get(kinds, {"hub"})


@pytest.mark.parametrize("kinds", ["rr", "rrr", "ss", "srr"])
def test_a_pipelined_prompt_beside_single_tokens_gives_local_ids(
    kinds, peers, model_path, local_ids
):
    with placed(model_path, endpoints(peers, kinds)) as model:
        ids = run_together(model, ["prompt", "decode"], [slice(None), slice(0, 2)])
    both = local_ids("prompt") | local_ids("decode")
    assert ids == {name: both[name] for name in ids}


def graphs_sent(model: PlacedModel) -> list[int]:
    """To each node so far."""
    nodes = model.remote.counters.nodes.values()
    return [traffic.commands.get("GRAPH_COMPUTE", 0) for traffic in nodes]


@pytest.mark.parametrize("kinds", ["r", "rr", "rrr"])
def test_two_contexts_do_not_resend_each_others_graphs(kinds, peers, model_path):
    """The same prompts in one context after the other, and at once: as many graphs."""
    halves = [slice(0, 2), slice(2, 4)]
    with placed(model_path, endpoints(peers, kinds)) as model:
        for half in halves:
            run_together(model, ["decode"], [half])
        alone = graphs_sent(model)
        run_together(model, ["decode", "decode"], halves)
        assert graphs_sent(model) == [2 * count for count in alone]
        assert min(alone) > 0
