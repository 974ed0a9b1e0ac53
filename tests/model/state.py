"""The state of the model of transfers: plain tuples, so that a state can be told from all others.

One lane is one connection of a client to every node. Every value is a Tag, which says what it is
the result of; a buffer that is being written holds TORN.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

T = TypeVar("T")


class Tag(NamedTuple):
    """What bytes are: of which lane, step, attempt and ubatch, and after how many stages."""

    lane: int
    step: int
    attempt: int
    ubatch: int
    stage: int


NOTHING = Tag(-1, 0, 0, 0, 0)
TORN = Tag(-2, 0, 0, 0, 0)


class Command(NamedTuple):
    """A command in a stream; which fields mean something depends on the kind.

    Attributes:
        kind: SET, COMPUTE, SEND, RECV, PUSH, COPY, GET (checked) or FETCH (kept by the client).
        buffer: what is read, or written by SET and RECV.
        value: what SET writes and COMPUTE makes.
        expected: what COMPUTE and GET must find.
        target: where COMPUTE, PUSH and COPY write.
        ticket: names the transfer of SEND and RECV.
        node: the destination of SEND and PUSH.
    """

    kind: str
    buffer: int
    value: Tag = NOTHING
    expected: Tag = NOTHING
    target: int = -1
    ticket: Tag = NOTHING
    node: int = -1


class Connection(NamedTuple):
    """One lane's stream at one node: what is to be done, and the errors that wait for a reply."""

    commands: tuple[Command, ...] = ()
    busy: bool = False  # in the middle of the first command
    kept: bool = False  # a command failed: those without reply are dropped
    report: bool = False  # a worker could not send
    epoch: int = 0  # how many errors were delivered: a report of before is void

    @property
    def failed(self) -> bool:
        """Whether the next reply is an error."""
        return self.kept or self.report

    def delivered(self) -> Connection:
        """The error has gone out."""
        return self._replace(kept=False, report=False, epoch=self.epoch + 1)


class Parcel(NamedTuple):
    """A snapshot on its way."""

    command: Command
    value: Tag
    lane: int
    epoch: int


class Wire(NamedTuple):
    """What a peer's thread at the destination does now; `place` -1: data go to the inbox."""

    parcel: Parcel
    begun: bool = False
    place: int = -1


class Entry(NamedTuple):
    """A ticket in an inbox: WAITING, FILLING, READY or FAILED."""

    state: str
    claimed: bool
    place: int = -1
    value: Tag = NOTHING


class Client(NamedTuple):
    """Who issues the commands of one lane; `phase`: run, void, settle or done."""

    step: int = 0
    attempt: int = 0
    at: int = 0
    phase: str = "run"
    value: Tag = NOTHING
    error: bool = False


class State(NamedTuple):
    """Everything; `turns` says which lane computes on a node, -1 for none.

    `losses` and `deadlines` are how many there may still be; a RECV whose data are among the `lost`
    gives up beyond that.
    """

    clients: tuple[Client, ...]
    connections: tuple[Connection, ...]  # lane by lane, a node each
    memory: tuple[Tag, ...]
    turns: tuple[int, ...]
    queues: tuple[tuple[Parcel, ...], ...]  # of the workers, one for each pair of nodes
    wires: tuple[Wire | None, ...]
    inboxes: tuple[tuple[tuple[Tag, Entry], ...], ...]
    losses: int
    deadlines: int
    lost: tuple[Tag, ...] = ()

    @property
    def nodes(self) -> int:
        """How many nodes there are."""
        return len(self.turns)

    def entry(self, node: int, ticket: Tag) -> Entry | None:
        """What an inbox knows of a ticket."""
        return dict(self.inboxes[node]).get(ticket)

    def write(self, buffer: int, value: Tag) -> State:
        """Other bytes in a buffer."""
        return self._replace(memory=put(self.memory, buffer, value))

    def told(self, lane: int, client: Client) -> State:
        """A client has gone on."""
        return self._replace(clients=put(self.clients, lane, client))

    def change(self, number: int, connection: Connection) -> State:
        """Another connection in the place of the old one."""
        return self._replace(connections=put(self.connections, number, connection))

    def begun(self, number: int) -> State:
        """A stream is in the middle of its first command."""
        return self.change(number, self.connections[number]._replace(busy=True))

    def done(self, number: int) -> State:
        """A stream has done its first command."""
        connection = self.connections[number]
        left = connection._replace(commands=connection.commands[1:], busy=False)
        return self.change(number, left)

    def refused(self, number: int) -> State:
        """A stream's first command has failed."""
        return self.change(number, self.connections[number]._replace(kept=True)).done(number)

    def wired(self, pair: int, wire: Wire | None) -> State:
        """Something else is on its way between two nodes."""
        return self._replace(wires=put(self.wires, pair, wire))

    def enter(self, node: int, ticket: Tag, entry: Entry | None) -> State:
        """An inbox knows something else of a ticket; None: nothing any more."""
        entries = [(known, e) for known, e in self.inboxes[node] if known != ticket]
        if entry is not None:
            entries.append((ticket, entry))
        return self._replace(inboxes=put(self.inboxes, node, tuple(sorted(entries))))


def put(values: tuple[T, ...], index: int, value: T) -> tuple[T, ...]:
    """The same values but for one."""
    return (*values[:index], value, *values[index + 1 :])


class Violation(Exception):
    """Something that must not happen."""
