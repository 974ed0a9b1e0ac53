"""The client of the model: queues the commands of a step, waits, decodes again on failure."""

from __future__ import annotations

import functools
from collections.abc import Iterator

from tests.model.program import Op, Scenario, program
from tests.model.state import Client, Entry, State, Violation

#: decodes of one step, as engine/ring_context.py allows.
TRIES = 4
Steps = Iterator[tuple[str, State]]


class ClientRules:
    """What the client of a lane may do next; client/lane.py is what this stands for."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._program = functools.cache(functools.partial(program, scenario))

    def following(self, state: State, lane: int) -> Steps:
        """Every next event, with the state after it."""
        client = state.clients[lane]
        if client.phase == "run":
            yield from self._run(state, lane, client)
        elif client.phase == "void":
            yield from self._void(state, lane, client)
        elif client.phase == "settle":
            yield from self._settle(state, lane, client)

    def _run(self, state: State, lane: int, client: Client) -> Steps:
        ops = self._program(lane, client.step, client.attempt)
        at, first = client.at, ops[client.at]
        if first.kind == "wait":
            yield from self._watch(state, lane, first.node)
            if state.connections[lane * state.nodes + first.node].commands:
                return
            if client.error:
                yield f"client {lane} gives up", self._failed(state, lane)
                return
            at += 1
        # What is queued in one go is one event: a node that is slow looks like a client that is.
        while at < len(ops) and ops[at].kind != "wait":
            state = self._queue(state, lane, ops[at])
            at += 1
        client = client._replace(at=at)
        if at == len(ops):
            over = client.step + 1 == self._scenario.steps
            client = Client(step=client.step + 1, phase="done" if over else "run")
        yield f"client {lane} goes on", state.told(lane, client)

    def _queue(self, state: State, lane: int, op: Op) -> State:
        command = op.command
        if op.kind == "set":
            command = command._replace(value=state.clients[lane].value)
        number = lane * state.nodes + op.node
        connection = state.connections[number]
        return state.change(number, connection._replace(commands=(*connection.commands, command)))

    def _watch(self, state: State, lane: int, busy: int) -> Steps:
        """While a reply is waited for, the other nodes are asked for errors."""
        for node in range(state.nodes):
            number = lane * state.nodes + node
            connection = state.connections[number]
            if node != busy and not connection.commands and connection.failed:
                told = state.change(number, connection.delivered())
                yield f"client {lane} hears an error of node {node}", self._failed(told, lane)

    def _failed(self, state: State, lane: int) -> State:
        client = state.clients[lane]
        if client.attempt + 1 == TRIES:
            raise Violation(f"step {client.step} of lane {lane} failed {TRIES} times")
        return state.told(lane, client._replace(phase="void", at=0))

    def _void(self, state: State, lane: int, client: Client) -> Steps:
        """Give the tickets up, one after the other; not in order with anything else."""
        ops = self._program(lane, client.step, client.attempt)
        tickets = [(op.node, op.command.ticket) for op in ops if op.command.kind == "RECV"]
        if client.at == len(tickets) or not self._scenario.voids:
            yield f"client {lane} has voided", state.told(lane, client._replace(phase="settle"))
            return
        node, ticket = tickets[client.at]
        entry = state.entry(node, ticket)
        early = entry is not None and not entry.claimed and entry.state in ("READY", "FILLING")
        if entry is None or entry.state == "WAITING" or early:
            state = state.enter(node, ticket, Entry("FAILED", entry is not None and entry.claimed))
        yield f"client {lane} voids", state.told(lane, client._replace(at=client.at + 1))

    def _settle(self, state: State, lane: int, client: Client) -> Steps:
        """When all nodes are idle and have told their errors, the step is decoded again."""
        numbers = range(lane * state.nodes, (lane + 1) * state.nodes)
        if any(state.connections[number].commands for number in numbers):
            return
        for number in numbers:
            if state.connections[number].failed:
                state = state.change(number, state.connections[number].delivered())
        again = Client(step=client.step, attempt=client.attempt + 1)
        yield f"client {lane} decodes again", state.told(lane, again)
