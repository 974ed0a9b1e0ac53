"""Broken networks between real peers: the right tokens, or one sentence that says who and why.

Node B stands behind a proxy. The client path is what the coordinator sends to it, the peer path
what node A sends it. Each run has a deadline, and after it the node serves the next client.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from ringline.client import edge, greeting
from ringline.client.edge import Path
from ringline.errors import NetworkError, RinglineError
from ringline.wire.commands import Command
from tests.peers.lossy import Fault, Harm, Lossy, lossy
from tests.peers.processes import Peer, patience, ringline_node
from tests.rings import context_for, greedy, open_peers, placed, prompts_of
from tests.server_client import Client

pytestmark = pytest.mark.model

CLIENT, PEER = frozenset({"client", "attach"}), frozenset({"peer"})
#: of a run with a fault: loading, 16 tokens, and what it takes to notice and to recover.
RECOVERY = 100.0
N_PREDICT = 16


@pytest.fixture(scope="module")
def peers() -> Iterator[list[Peer]]:
    """Two nodes for all tests of this file: each test finds them as good as new."""
    with ExitStack() as stack:
        yield open_peers(stack, "rr")


@pytest.fixture(autouse=True)
def deadlines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give up sooner than by default; a failed edge is not tried again in a test."""
    monkeypatch.setenv("RINGLINE_TIMEOUT", str(patience(12)))
    monkeypatch.setattr(edge, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(edge, "_LONGEST_PAUSE", 3600.0)


def within(seconds: float, run: Callable[[], list[int]]) -> list[int]:
    """Run something in a thread of its own; fails where it has not ended by then."""
    found: list[list[int]] = []
    errors: list[RinglineError] = []

    def keep() -> None:
        try:
            found.append(run())
        except RinglineError as error:
            errors.append(error)

    thread = threading.Thread(target=keep, daemon=True)
    thread.start()
    thread.join(patience(seconds))
    assert not thread.is_alive(), f"it has neither recovered nor failed after {seconds:g} s"
    if errors:
        raise errors[0]
    return found[0]


def decode(model_path, endpoints: list[str], path: Path | None = None) -> list[int]:
    with ExitStack() as stack:
        model = stack.enter_context(placed(model_path, endpoints, path=path))
        context = stack.enter_context(context_for("decode", model))
        return greedy(context, prompts_of("decode", model)["prompt 0"], N_PREDICT)


def run(model_path, peers: list[Peer], proxy: Lossy, path: Path | None = None) -> list[int]:
    endpoints = [peers[0].endpoint, proxy.endpoint]
    return within(RECOVERY, lambda: decode(model_path, endpoints, path))


def assert_well(peers: list[Peer]) -> None:
    """Both nodes are there and serve the next client."""
    for peer in peers:
        assert peer.alive
        with Client.extended(peer.endpoint) as client:
            client.ping()


def reference(local_ids) -> list[int]:
    return local_ids("decode")["prompt 0"][:N_PREDICT]


SLOW = {
    "late": Fault(delay=0.002),
    "in single bytes": Fault(split=True),
    "both, the client": Fault(roles=CLIENT, split=True, delay=0.001),
    "both, the peer": Fault(roles=PEER, split=True, delay=0.001),
}


@pytest.mark.parametrize("path", [Path.RENDEZVOUS, Path.DIRECT, Path.HUB])
@pytest.mark.parametrize("fault", SLOW.values(), ids=SLOW.keys())
def test_a_network_that_is_late_or_splits_costs_no_id(fault, path, peers, model_path, local_ids):
    with lossy(peers[1].endpoint, fault) as proxy:
        assert run(model_path, peers, proxy, path) == reference(local_ids)
    assert_well(peers)


PEER_HARM = [
    (Path.RENDEZVOUS, Command.PEER_DATA, harm)
    for harm in (Harm.CUT, Harm.CUT_INSIDE, Harm.HALF_CLOSE, Harm.SWALLOW, Harm.DEAF)
] + [
    (Path.DIRECT, Command.SET_TENSOR, harm) for harm in (Harm.CUT, Harm.CUT_INSIDE, Harm.HALF_CLOSE)
]


@pytest.mark.parametrize(
    ("path", "command", "harm"), PEER_HARM, ids=[f"{p}-{h.name.lower()}" for p, _, h in PEER_HARM]
)
def test_a_broken_way_between_nodes_costs_no_id(path, command, harm, peers, model_path, local_ids):
    """The step is decoded again over the hub, or the transfer takes a new connection."""
    fault = Fault(roles=PEER, harm=harm, command=command, count=4)
    with lossy(peers[1].endpoint, fault) as proxy:
        assert run(model_path, peers, proxy, path) == reference(local_ids)
        assert proxy.struck.is_set()
    assert_well(peers)


def test_a_peer_that_is_deaf_from_the_beginning_is_left_for_the_hub(
    peers, model_path, local_ids, monkeypatch
):
    """The source waits for its own deadline, which is longer than the others of this file."""
    monkeypatch.setenv("RINGLINE_TIMEOUT", str(patience(30)))
    fault = Fault(roles=PEER, harm=Harm.DEAF, command=Command.EXT_HELLO)
    with lossy(peers[1].endpoint, fault) as proxy:
        assert run(model_path, peers, proxy) == reference(local_ids)
        assert proxy.struck.is_set()
    assert_well(peers)


@pytest.mark.parametrize("harm", [Harm.DEAF, Harm.SWALLOW])
def test_a_peer_that_falls_silent_in_a_copy_is_left_for_the_hub(
    harm, peers, model_path, local_ids, monkeypatch
):
    """COPY_TENSOR_TO waits for the peer's barrier; its patience ends before the client's."""
    monkeypatch.setenv("RINGLINE_TIMEOUT", str(patience(30)))
    fault = Fault(roles=PEER, harm=harm, command=Command.SET_TENSOR, count=4)
    prelude = f"from ringline import settings; settings.BULK_TIMEOUT = {patience(5)}"
    with (
        ringline_node("--threads=1", prelude=prelude) as impatient,
        lossy(peers[1].endpoint, fault) as proxy,
    ):
        nodes = [impatient, peers[1]]
        assert run(model_path, nodes, proxy, Path.DIRECT) == reference(local_ids)
        assert proxy.struck.is_set()
        assert_well(nodes)


CLIENT_HARM = [
    (Command.SET_TENSOR, 30, Harm.CUT_INSIDE),
    (Command.GRAPH_COMPUTE, 1, Harm.CUT),
    (Command.GRAPH_RECOMPUTE, 3, Harm.CUT),
    (Command.GET_TENSOR, 4, Harm.CUT),
    (Command.GET_TENSOR, 4, Harm.HALF_CLOSE),
    (Command.GET_TENSOR, 4, Harm.DEAF),
    (Command.GET_TENSOR, 4, Harm.SWALLOW),
    (Command.SET_TENSOR, 200, Harm.DEAF),
    (Command.STEP, 1, Harm.CUT_INSIDE),
    (Command.STEP, 4, Harm.CUT),
    (Command.STEP, 4, Harm.HALF_CLOSE),
    (Command.STEP, 4, Harm.DEAF),
    (Command.STEP, 4, Harm.SWALLOW),
]


@pytest.mark.parametrize(
    ("command", "count", "harm"),
    CLIENT_HARM,
    ids=[f"{c.name}-{n}-{h.name.lower()}" for c, n, h in CLIENT_HARM],
)
def test_a_broken_way_to_a_node_is_one_sentence_with_node_command_and_cause(
    command, count, harm, peers, model_path, monkeypatch
):
    """Without the parts of level 5 each command goes by itself, with them a step is one."""
    monkeypatch.setenv("RINGLINE_PARTS", "all" if command is Command.STEP else "none")
    fault = Fault(roles=CLIENT, harm=harm, command=command, count=count)
    with lossy(peers[1].endpoint, fault) as proxy:
        with pytest.raises(NetworkError) as failure:
            run(model_path, peers, proxy)
        assert proxy.struck.is_set()
        error = failure.value
        assert error.peer == proxy.endpoint
        assert error.command in Command.__members__
        assert error.cause
        assert str(error).startswith(f"node {proxy.endpoint}: {error.command}: {error.cause}")
        assert "\n" not in str(error)
    assert_well(peers)


#: what the coordinator says first, in this order.
GREETING = (Command.HELLO, Command.EXT_HELLO, Command.DEVICE_COUNT, Command.GET_ALIGNMENT)


@pytest.mark.parametrize("harm", [Harm.CUT_INSIDE, Harm.DEAF, Harm.HALF_CLOSE])
@pytest.mark.parametrize("step", [0, 1, 2])
def test_a_way_that_breaks_at_the_greeting_is_one_sentence(
    step, harm, peers, model_path, monkeypatch
):
    """A node answers what it got before its half was closed: the next command finds it gone."""
    if harm is Harm.DEAF:  # it is waited for to its end
        monkeypatch.setattr(greeting, "HELLO_TIMEOUT", patience(4))
    with lossy(peers[1].endpoint, Fault(harm=harm, command=GREETING[step])) as proxy:
        with pytest.raises(NetworkError) as failure:
            run(model_path, peers, proxy)
        assert failure.value.peer == proxy.endpoint
        expected = GREETING[step + 1 if harm is Harm.HALF_CLOSE else step]
        assert failure.value.command == expected.name
    assert_well(peers)
