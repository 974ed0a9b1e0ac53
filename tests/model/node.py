"""The nodes of the model: streams, turns on a device, workers, peer connections, inboxes."""

from __future__ import annotations

from collections.abc import Iterator

from tests.model.program import Scenario
from tests.model.state import TORN, Command, Entry, Parcel, State, Tag, Violation, Wire, put

#: these have a reply, which brings out an error.
ANSWERED = ("GET", "FETCH")
Steps = Iterator[tuple[str, State]]


class StreamRules:
    """What a stream may do next; server/connection.py and its handlers are what this stands for."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pairs = scenario.pairs
        self._handlers = {
            "SET": self._set,
            "COMPUTE": self._compute,
            "SEND": self._send,
            "PUSH": self._send,
            "RECV": self._recv,
            "COPY": self._copy,
            "GET": self._answer,
            "FETCH": self._answer,
        }

    def following(self, state: State, lane: int, node: int) -> Steps:
        """Every next event of a lane's stream at a node, with the state after it."""
        number = lane * state.nodes + node
        connection = state.connections[number]
        if not connection.commands:
            return
        command, name = connection.commands[0], f"lane {lane} node {node}: "
        if connection.kept and not connection.busy and command.kind not in ANSWERED:
            yield name + f"drops {command.kind}", state.done(number)
            return
        for after in self._handlers[command.kind](state, number, command):
            yield name + command.kind, after

    def _set(self, state: State, number: int, command: Command) -> Iterator[State]:
        yield state.write(command.buffer, command.value).done(number)

    def _compute(self, state: State, number: int, command: Command) -> Iterator[State]:
        lane, node = divmod(number, state.nodes)
        found = state.memory[command.buffer]
        if state.connections[number].busy:
            _expect(found, command.expected, "a computation ends")
            over = state._replace(turns=put(state.turns, node, -1))
            yield over.write(command.target, command.value).done(number)
        elif state.turns[node] < 0:
            _expect(found, command.expected, "a computation begins")
            yield state._replace(turns=put(state.turns, node, lane)).begun(number)

    def _send(self, state: State, number: int, command: Command) -> Iterator[State]:
        lane, node = divmod(number, state.nodes)
        pair = self._pairs.index((node, command.node))
        queue = state.queues[pair]
        if len(queue) < self._scenario.queue:
            epoch = state.connections[number].epoch
            parcel = Parcel(command, state.memory[command.buffer], lane, epoch)
            yield state._replace(queues=put(state.queues, pair, (*queue, parcel))).done(number)

    def _recv(self, state: State, number: int, command: Command) -> Iterator[State]:
        node, ticket = number % state.nodes, command.ticket
        entry = state.entry(node, ticket)
        if not state.connections[number].busy:
            if entry is None:
                entry = Entry("WAITING", claimed=True, place=command.buffer)
            yield state.enter(node, ticket, entry._replace(claimed=True)).begun(number)
        elif entry is not None and entry.state == "READY":
            if entry.place < 0:
                state = state.write(command.buffer, entry.value)
            yield state.enter(node, ticket, None).done(number)
        elif entry is not None and entry.state == "FAILED":
            yield state.enter(node, ticket, None).refused(number)
        elif entry is None or entry.state == "WAITING" or not self._scenario.patient:
            yield from self._give_up(state, number, ticket)

    def _give_up(self, state: State, number: int, ticket: Tag) -> Iterator[State]:
        """The deadline passes: where the data are lost for certain, else some few times.

        The ticket is remembered: data that come late must not take room, nobody will fetch them.
        """
        entry = Entry("FAILED", claimed=False) if self._scenario.remembers else None
        given_up = state.enter(number % state.nodes, ticket, entry).refused(number)
        if ticket in state.lost:
            yield given_up
        elif state.deadlines:
            yield given_up._replace(deadlines=state.deadlines - 1)

    def _copy(self, state: State, number: int, command: Command) -> Iterator[State]:
        """The destination's peer connection writes while the source waits."""
        if state.connections[number].busy:
            yield state.write(command.target, state.memory[command.buffer]).done(number)
        else:
            yield state.write(command.target, TORN).begun(number)

    def _answer(self, state: State, number: int, command: Command) -> Iterator[State]:
        lane = number // state.nodes
        connection, client = state.connections[number], state.clients[lane]
        if connection.failed:
            state = state.change(number, connection.delivered())
            client = client._replace(error=True)
        elif command.kind == "FETCH":
            client = client._replace(value=state.memory[command.buffer])
        elif not client.error:
            _expect(state.memory[command.buffer], command.expected, "a result is read")
        yield state.told(lane, client).done(number)


class PeerRules:
    """What is on its way between two nodes; server/senders.py and server/inbox.py."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario
        self._pairs = scenario.pairs

    def following(self, state: State, pair: int) -> Steps:
        """Every next event between a pair of nodes, with the state after it."""
        wire, name = state.wires[pair], f"{self._pairs[pair][0]} to {self._pairs[pair][1]}: "
        if wire is None:
            if state.queues[pair]:
                yield from self._sends(state, pair, name)
        elif wire.begun:
            yield name + "arrives", self._arrived(state, pair, wire)
            if state.losses:
                yield name + "breaks off", self._broken_off(state, pair, wire)
        else:
            offered = self._offered(state, pair, wire)
            if offered is not None:
                yield name + "begins to arrive", offered

    def _sends(self, state: State, pair: int, name: str) -> Steps:
        parcel, *left = state.queues[pair]
        moved = state._replace(queues=put(state.queues, pair, tuple(left)))
        if not self._scenario.snapshot:
            parcel = parcel._replace(value=state.memory[parcel.command.buffer])
        yield name + "sends", moved.wired(pair, Wire(parcel))
        if state.losses:
            lost = moved._replace(losses=state.losses - 1)
            yield name + "cannot send", self._reported(lost, pair, parcel)
            forgotten = (*state.lost, parcel.command.ticket)
            yield name + "loses without a word", lost._replace(lost=forgotten)

    def _offered(self, state: State, pair: int, wire: Wire) -> State | None:
        """Data begin to arrive; None where they must wait for room."""
        node, command = self._pairs[pair][1], wire.parcel.command
        if command.kind == "PUSH" or not self._scenario.in_stream:
            torn = state.write(command.target, TORN)
            return torn.wired(pair, Wire(wire.parcel, True, command.target))
        entry = state.entry(node, command.ticket)
        if entry is None:
            if not self._has_room(state, node):
                return None
            filling = Entry("FILLING", claimed=False, value=wire.parcel.value)
        elif entry.state == "WAITING":
            filling = entry._replace(state="FILLING")
            state = state.write(entry.place, TORN)
        else:
            return state.wired(pair, None)  # a ticket is used once
        entered = state.enter(node, command.ticket, filling)
        return entered.wired(pair, Wire(wire.parcel, True, filling.place))

    def _has_room(self, state: State, node: int) -> bool:
        early = [e for _, e in state.inboxes[node] if e.place < 0 and e.state != "FAILED"]
        return len(early) < self._scenario.room

    def _arrived(self, state: State, pair: int, wire: Wire) -> State:
        node, parcel = self._pairs[pair][1], wire.parcel
        state = state.wired(pair, None)
        if wire.place >= 0:
            state = state.write(wire.place, parcel.value)
        if parcel.command.kind == "PUSH":
            return state
        ticket = parcel.command.ticket
        entry = state.entry(node, ticket)
        if not self._scenario.in_stream:
            claimed = entry is not None and entry.claimed
            return state.enter(node, ticket, Entry("READY", claimed, wire.place))
        if wire.place >= 0 and not _awaited(state, parcel, node):
            raise Violation("data are written after their RECV gave up")
        if entry is not None and entry.state == "FILLING":
            state = state.enter(node, ticket, entry._replace(state="READY"))
        return state

    def _broken_off(self, state: State, pair: int, wire: Wire) -> State:
        node, ticket = self._pairs[pair][1], wire.parcel.command.ticket
        state = state._replace(losses=state.losses - 1).wired(pair, None)
        entry = state.entry(node, ticket)
        if entry is None or entry.state not in ("WAITING", "FILLING"):
            return state
        return state.enter(node, ticket, Entry("FAILED", entry.claimed))

    def _reported(self, state: State, pair: int, parcel: Parcel) -> State:
        """The worker tells the stream that asked, unless an error was delivered there since."""
        number = parcel.lane * state.nodes + self._pairs[pair][0]
        connection = state.connections[number]
        if connection.epoch != parcel.epoch:
            return state
        return state.change(number, connection._replace(report=True))


def _expect(found: Tag, expected: Tag, when: str) -> None:
    if found != expected:
        raise Violation(f"{when} with {found} where {expected} is meant")


def _awaited(state: State, parcel: Parcel, node: int) -> bool:
    connection = state.connections[parcel.lane * state.nodes + node]
    return connection.busy and connection.commands[0].ticket == parcel.command.ticket
