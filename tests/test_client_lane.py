"""What a lane does when transfers fail: whom it blames, for how long, and that all is idle."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ringline.client import edge
from ringline.client.edge import Edge
from ringline.client.lane import Lane, Ticket
from ringline.errors import TransferError
from ringline.wire.commands import Command
from ringline.wire.extension import PeerData


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Time stands still: a pause of a second may not pass while a test looks at it."""
    monkeypatch.setattr(edge, "time", SimpleNamespace(monotonic=lambda: 1000.0))


class FakeNode:
    """A node of level 4 whose connections answer what they are told to."""

    level = 4

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.edges: dict[FakeNode, Edge] = {}
        self.troubles: list[TransferError] = []  # what the next waits raise
        self.voided: list[bytes] = []
        self.pinged = 0
        self.main = SimpleNamespace(post=self._post, flush=lambda: None)
        self.connection = SimpleNamespace(
            replies=SimpleNamespace(), drain=self._raise_trouble, call=self._call
        )

    def edge(self, target: FakeNode) -> Edge:
        return self.edges.setdefault(target, Edge(probed=True))

    def _post(self, command: Command, body: bytes) -> None:
        assert command is Command.PEER_DATA
        self.voided.append(PeerData.unpack(body).ticket)

    def _call(self, command: Command, size: int) -> bytes:
        assert command is Command.PING
        self.pinged += 1
        self._raise_trouble()
        return b"\x01"

    def _raise_trouble(self) -> None:
        if self.troubles:
            raise self.troubles.pop(0)


class Chain:
    """Nodes in a row, a lane over them, and tickets of one step: `pieces` for each edge."""

    def __init__(self, n_nodes: int, pieces: int = 1) -> None:
        self.nodes = [FakeNode(f"node:{index}") for index in range(n_nodes)]
        self.lane = Lane(self.nodes, [node.connection for node in self.nodes])
        self.tickets: list[list[Ticket]] = []
        for index in range(n_nodes - 1):
            source, target = self.nodes[index], self.nodes[index + 1]
            numbers = [bytes([index + 1, piece]) * 8 for piece in range(pieces)]
            self.tickets.append([Ticket(number, source, target) for number in numbers])
        self.lane.tickets = [ticket for of_edge in self.tickets for ticket in of_edge]

    def unsent(self, index: int, piece: int = 0) -> TransferError:
        """What the source of an edge says."""
        ticket = self.tickets[index][piece]
        cause = f"cannot send ticket {ticket.number.hex()} to {ticket.target.endpoint}: gone"
        return TransferError(cause, peer=ticket.source.endpoint)

    def starved(self, index: int, piece: int = 0) -> TransferError:
        """What the destination of an edge says."""
        ticket = self.tickets[index][piece]
        cause = f"RECV_TENSOR: nothing came under ticket {ticket.number.hex()}: given up"
        return TransferError(cause, peer=ticket.target.endpoint)

    def blamed(self) -> list[int]:
        """Which edges take the hub now."""
        pairs = zip(self.nodes, self.nodes[1:], strict=False)
        return [i for i, (source, target) in enumerate(pairs) if not source.edge(target).open()]


def test_a_step_that_worked_forgets_its_tickets_and_makes_its_edges_good():
    chain = Chain(3)
    way = chain.nodes[0].edge(chain.nodes[1])
    way.failed()
    way.probed = True
    chain.lane.check()
    assert chain.lane.tickets == []
    assert way.pause == 0.0
    chain.lane.check()


def test_a_failed_step_raises_its_first_error_once():
    chain = Chain(2)
    first, second = chain.unsent(0), chain.starved(0)
    chain.lane.fail(first)
    chain.lane.fail(second)
    with pytest.raises(TransferError) as failure:
        chain.lane.check()
    assert failure.value is first
    chain.lane.check()


def test_before_a_failed_step_ends_all_tickets_are_void_and_all_nodes_idle():
    chain = Chain(3, pieces=2)
    chain.nodes[1].troubles = [chain.unsent(1), chain.starved(0)]  # one for drain, one for PING
    chain.lane.fail(chain.starved(1))
    with pytest.raises(TransferError):
        chain.lane.check()
    assert [node.pinged for node in chain.nodes] == [1, 1, 1]
    for of_edge, target in zip(chain.tickets, chain.nodes[1:], strict=True):
        assert target.voided == [ticket.number for ticket in of_edge]


@pytest.mark.parametrize(
    ("told", "settled", "blamed"),
    [
        pytest.param(["unsent 0"], ["starved 0", "starved 1"], [0], id="source-says"),
        pytest.param(["unsent 1", "starved 1"], [], [1], id="second-source-says"),
        pytest.param(["starved 1"], ["starved 0"], [0], id="the-first-that-starved"),
        pytest.param(["starved 1"], [], [1], id="the-second-alone-starved"),
        pytest.param(["starved 1"], ["unsent 1", "unsent 0"], [0, 1], id="both-broke"),
        pytest.param(["nothing known"], [], [0, 1], id="nobody-knows"),
    ],
)
def test_only_the_edges_that_broke_are_blamed(told, settled, blamed):
    chain = Chain(3, pieces=2)

    def error(words: str) -> TransferError:
        kind, _, index = words.partition(" ")
        if kind == "nothing":
            return TransferError("a transfer failed", peer="node:2")
        return getattr(chain, kind)(int(index))

    for words in told:
        chain.lane.fail(error(words))
    for words in settled:
        found = error(words)
        next(node for node in chain.nodes if node.endpoint == found.peer).troubles.append(found)
    with pytest.raises(TransferError):
        chain.lane.check()
    assert chain.blamed() == blamed


def test_an_edge_is_blamed_once_for_all_pieces_of_a_step():
    chain = Chain(2, pieces=8)
    chain.lane.fail(TransferError("a transfer failed", peer="node:1"))
    with pytest.raises(TransferError):
        chain.lane.check()
    assert chain.nodes[0].edge(chain.nodes[1]).pause == edge._FIRST_PAUSE


def test_an_edge_that_fails_again_is_left_alone_for_longer():
    """A probe that gets through is no proof: only a step that works ends the distrust."""
    way, pauses = Edge(), []
    for _ in range(8):
        way.failed()
        assert not way.open()
        assert not way.probed
        way.not_before = 0.0
        assert way.open()
        way.probed = True
        pauses.append(way.pause)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0]
    way.worked()
    assert way.open()
    way.failed()
    assert way.pause == 1.0
