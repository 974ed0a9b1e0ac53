"""A pure model of transfers between nodes, explored over every order in which things may happen.

It has what decides about order and nothing else: the client's streams, one for each lane and node,
served in order; turns on a device; workers with bounded queues; peer connections; an inbox with
bounded room; losses, deadlines and voids. Writes and computations take two moments, so that another
one may fall in between.

Violations are found, not assumed: a computation that begins or ends with other bytes than those
meant for it, a result that is not the step's, a write after its RECV gave up, a state from which
nothing goes on although a step has not ended, and a step that fails too often.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tests.model.client import ClientRules
from tests.model.node import PeerRules, StreamRules
from tests.model.program import Scenario
from tests.model.state import NOTHING, Client, Connection, State, Violation

__all__ = ["Found", "Scenario", "explore"]


@dataclass
class Found:
    """What an exploration came to: how many states, and the first violation with its history."""

    states: int
    violation: str = ""
    history: list[str] = field(default_factory=list)


def explore(scenario: Scenario, most: int = 1_000_000) -> Found:
    """Visit every state that can be reached, depth first; stop at the first violation."""
    rules = _Rules(scenario)
    start = _start(scenario)
    origin: dict[State, tuple[str, State] | None] = {start: None}
    waiting = [start]
    while waiting:
        state = waiting.pop()
        try:
            following = list(rules.following(state))
            if not following and any(client.phase != "done" for client in state.clients):
                raise Violation("nothing goes on, and a step has not ended")
        except Violation as error:
            return Found(len(origin), str(error), _history(origin, state))
        for name, after in following:
            if after not in origin:
                origin[after] = name, state
                waiting.append(after)
        assert len(origin) < most, f"more than {most} states"
    return Found(len(origin))


class _Rules:
    """All events that may happen next."""

    def __init__(self, scenario: Scenario) -> None:
        self._client = ClientRules(scenario)
        self._stream = StreamRules(scenario)
        self._peer = PeerRules(scenario)

    def following(self, state: State) -> Iterator[tuple[str, State]]:
        for lane in range(len(state.clients)):
            yield from self._client.following(state, lane)
            for node in range(state.nodes):
                yield from self._stream.following(state, lane, node)
        for pair in range(len(state.wires)):
            yield from self._peer.following(state, pair)


def _start(scenario: Scenario) -> State:
    n_pairs = len(scenario.pairs)
    return State(
        clients=(Client(),) * scenario.lanes,
        connections=(Connection(),) * (scenario.lanes * scenario.nodes),
        memory=(NOTHING,) * (scenario.lanes * scenario.per_lane),
        turns=(-1,) * scenario.nodes,
        queues=((),) * n_pairs,
        wires=(None,) * n_pairs,
        inboxes=((),) * scenario.nodes,
        losses=scenario.losses,
        deadlines=scenario.deadlines,
    )


def _history(origin: dict[State, tuple[str, State] | None], state: State) -> list[str]:
    names: list[str] = []
    came = origin[state]
    while came is not None:
        names.append(came[0])
        came = origin[came[1]]
    return names[::-1]
