"""Rendezvous on a real model: what breaks costs a step decoded again, or a named error, no id."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from itertools import pairwise

import pytest

from ringline.client import edge
from ringline.client.connection import Connection
from ringline.client.edge import Edge
from ringline.engine.ring_model import PlacedModel
from ringline.errors import DeadlineError, NetworkError
from ringline.wire.commands import Command
from tests.peers.forwarder import Forwarder, forwarder
from tests.peers.process_tree import descendants
from tests.peers.processes import Peer, patience
from tests.rings import context_for, greedy, open_peers, paths_of, placed, prompts_of
from tests.server_client import wait_for

pytestmark = pytest.mark.model

#: connections that the coordinator opens to a node: the main one and one for the context.
OURS = 2


def edges_of(model: PlacedModel) -> list[Edge]:
    return [source.edge(target) for source, target in pairwise(model.remote.nodes)]


@pytest.fixture
def short_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edge that failed is tried again at once."""
    monkeypatch.setattr(edge, "_FIRST_PAUSE", 0.001)
    monkeypatch.setattr(edge, "_LONGEST_PAUSE", 0.001)


@pytest.fixture
def long_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edge that failed is not tried again in the test."""
    monkeypatch.setattr(edge, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(edge, "_LONGEST_PAUSE", 3600.0)


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> float:
    """A node is given up after this many seconds, a RECV after three quarters of them.

    The quarter between is for what a busy machine takes to say so: whoever waits for the node would
    give that up instead.
    """
    seconds = patience(12)
    monkeypatch.setenv("RINGLINE_TIMEOUT", str(seconds))
    return seconds


def close_way(proxy: Forwarder) -> None:
    """The nodes' connections end and cannot be made again; the coordinator's live."""
    proxy.refuse()
    assert proxy.cut(OURS)


def at_count(
    monkeypatch: pytest.MonkeyPatch, command: Command, count: int, act: Callable[[], None]
) -> None:
    """Do something when the `count`-th `command` is queued, before it is."""
    add, seen = Connection._add, [0]

    def counting(self, number, parts):
        if number is command:
            seen[0] += 1
            if seen[0] == count:
                act()
        return add(self, number, parts)

    monkeypatch.setattr(Connection, "_add", counting)


def test_an_edge_that_breaks_between_two_steps_costs_no_id(model_path, local_ids, long_pause):
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        model = stack.enter_context(placed(model_path, [source.endpoint, proxy.endpoint]))
        context = stack.enter_context(context_for("decode", model))
        prompt = prompts_of("decode", model)["prompt 0"]
        ids = greedy(context, prompt, 32, before_step=lambda step: step == 5 and close_way(proxy))
        assert ids == local_ids("decode")["prompt 0"]
        # The fifth step took a ticket, failed, and came again over the hub.
        assert paths_of(model) == {"rendezvous": 6, "hub": 27}


def test_an_edge_that_breaks_within_a_prompt_costs_no_id(
    model_path, local_ids, long_pause, monkeypatch
):
    """Some pieces have arrived then, some are on their way and lost, some cannot be sent.

    The source says so of these, and all is given up then. The pieces that have arrived are computed
    before, and however long that takes is no reason to give up a node.
    """
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        model = stack.enter_context(placed(model_path, [source.endpoint, proxy.endpoint]))
        context = stack.enter_context(context_for("prompt", model))
        at_count(monkeypatch, Command.SEND_TENSOR, 4, lambda: close_way(proxy))
        ((name, prompt),) = prompts_of("prompt", model).items()
        assert greedy(context, prompt, 16) == local_ids("prompt")[name]
        assert set(paths_of(model)) == {"rendezvous", "hub"}


def test_an_edge_that_works_again_is_used_again(model_path, local_ids, short_pause):
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        model = stack.enter_context(placed(model_path, [source.endpoint, proxy.endpoint]))
        context = stack.enter_context(context_for("decode", model))
        (way,) = edges_of(model)
        before: list[dict[str, int]] = []

        def open_and_close(step: int) -> None:
            if step in (5, 15):
                before.append(paths_of(model))
            if step == 5:
                close_way(proxy)
            elif step == 15:
                proxy.accept_again()
                wait_for("the end of the pause", way.open)

        prompt = prompts_of("decode", model)["prompt 0"]
        ids = greedy(context, prompt, 32, before_step=open_and_close)
        assert ids == local_ids("decode")["prompt 0"]
        assert before[0] == {"rendezvous": 5}
        assert before[1] == {"rendezvous": 6, "hub": 10}
        assert paths_of(model) == {"rendezvous": 6 + 17, "hub": 10}
        assert (way.probed, way.pause) == (True, 0.0)


def test_a_way_that_swallows_all_without_an_error_costs_no_id(
    model_path, local_ids, short_pause, short_patience
):
    """The data of one step are lost and nobody says so: the RECV gives up. A new way works."""
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        model = stack.enter_context(placed(model_path, [source.endpoint, proxy.endpoint]))
        context = stack.enter_context(context_for("decode", model))
        prompt = prompts_of("decode", model)["prompt 0"]
        ids = greedy(
            context, prompt, 32, before_step=lambda step: step == 5 and proxy.swallow(OURS)
        )
        assert ids == local_ids("decode")["prompt 0"]
        assert paths_of(model)["rendezvous"] > 6
        assert sum(paths_of(model).values()) == 33


@pytest.mark.parametrize("broken", [0, 1])
def test_only_the_edge_that_broke_takes_the_hub(broken, model_path, local_ids, long_pause):
    with ExitStack() as stack:
        nodes = open_peers(stack, "rrr")
        proxies = [stack.enter_context(forwarder(node.endpoint)) for node in nodes]
        model = stack.enter_context(placed(model_path, [proxy.endpoint for proxy in proxies]))
        context = stack.enter_context(context_for("decode", model))
        prompt = prompts_of("decode", model)["prompt 0"]
        ids = greedy(
            context,
            prompt,
            32,
            before_step=lambda step: step == 5 and close_way(proxies[broken + 1]),
        )
        assert ids == local_ids("decode")["prompt 0"]
        assert [way.open() for way in edges_of(model)] == [broken != 0, broken != 1]
        assert paths_of(model) == {"rendezvous": 2 * 6 + 27, "hub": 27}


def test_both_edges_may_break_at_once(model_path, local_ids, long_pause):
    with ExitStack() as stack:
        nodes = open_peers(stack, "rrr")
        proxies = [stack.enter_context(forwarder(node.endpoint)) for node in nodes]
        model = stack.enter_context(placed(model_path, [proxy.endpoint for proxy in proxies]))
        context = stack.enter_context(context_for("prompt", model))

        def close_both(step: int) -> None:
            if step == 3:
                for proxy in proxies[1:]:
                    close_way(proxy)

        ((name, prompt),) = prompts_of("prompt", model).items()
        assert greedy(context, prompt, 16, before_step=close_both) == local_ids("prompt")[name]
        assert [way.open() for way in edges_of(model)] == [False, False]


def freeze(node: Peer, frozen: list[int]) -> None:
    """Stop all processes of a node: it is there, takes connections, and does nothing."""
    for pid in descendants(node.process.pid):
        frozen.append(pid)
        os.kill(pid, signal.SIGSTOP)


def kill_frozen(node: Peer) -> None:
    for pid in reversed(descendants(node.process.pid)):
        os.kill(pid, signal.SIGKILL)


@pytest.fixture
def frozen() -> Iterator[list[int]]:
    """Processes that freeze() has stopped: killed at the end, or they would stay for ever."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize(
    ("kinds", "victim"), [("rr", 0), ("rr", 1), ("rrr", 0), ("rrr", 1), ("rrr", 2)]
)
def test_a_node_killed_while_the_last_one_waits_for_its_data_is_named_soon(
    kinds, victim, model_path, frozen, monkeypatch
):
    """The first node never sends: the last stage waits in RECV, and we wait for the last stage."""
    with ExitStack() as stack:
        nodes = open_peers(stack, kinds)
        endpoints = [node.endpoint for node in nodes]
        model = stack.enter_context(placed(model_path, endpoints))
        context = stack.enter_context(context_for("decode", model))
        prompt = prompts_of("decode", model)["prompt 0"]
        waits = f"node {endpoints[-1]} (GET_TENSOR)"

        def kill_when_all_wait() -> None:
            wait_for("the wait for the last stage", lambda: waits in context.waiting(), 60)
            if victim == 0:
                kill_frozen(nodes[0])
            else:
                nodes[victim].kill()

        killer = threading.Thread(target=kill_when_all_wait)
        at_count(
            monkeypatch, Command.SEND_TENSOR, 8, lambda: (freeze(nodes[0], frozen), killer.start())
        )
        with pytest.raises(NetworkError) as failure:
            greedy(context, prompt, 32)
        failed = time.monotonic()
        killer.join()
        assert failure.value.peer == endpoints[victim]
        assert endpoints[victim] in str(failure.value)
        # Far below the 120 seconds that a reply may take.
        assert time.monotonic() - failed < patience(30)


def test_a_node_that_stops_answering_is_named_by_a_deadline(
    model_path, frozen, short_patience, monkeypatch
):
    """Its data do not come, and neither does anything else of it."""
    with ExitStack() as stack:
        nodes = open_peers(stack, "rr")
        model = stack.enter_context(placed(model_path, [node.endpoint for node in nodes]))
        context = stack.enter_context(context_for("decode", model))
        prompt = prompts_of("decode", model)["prompt 0"]
        at_count(monkeypatch, Command.SEND_TENSOR, 4, lambda: freeze(nodes[0], frozen))
        with pytest.raises(DeadlineError) as failure:
            greedy(context, prompt, 32)
        assert failure.value.peer == nodes[0].endpoint
        assert failure.value.seconds == short_patience
