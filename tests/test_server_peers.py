"""Which connection to a peer a transfer takes, and what becomes of it: no socket needed."""

from __future__ import annotations

import pytest

from ringline.errors import DeadlineError, NetworkError, PeerError, RefusedError
from ringline.server import peers
from ringline.server.peers import Peers
from ringline.server.policy import PeerPolicy

HERE = "127.0.0.1:50052"
LOST = NetworkError("the connection was lost", peer=HERE)


class FakeLink:
    """Plays a connection: raises what it is told to, once."""

    def __init__(self, *troubles: Exception) -> None:
        self.troubles = list(troubles)
        self.pushed = 0
        self.closed = False
        self.good = True

    def push(self, _: bytes, __: bytes) -> None:
        self.pushed += 1
        if self.troubles:
            raise self.troubles.pop(0)

    def alive(self) -> bool:
        return self.good

    def close(self) -> None:
        self.closed = True


class Bench:
    """Peers whose connections are prepared; `links` are opened in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *links: FakeLink) -> None:
        self.links = links
        self.opened: list[int] = []
        waiting = list(links)

        def open_link(_: object, session: int, *_tls: object) -> FakeLink:
            self.opened.append(session)
            return waiting.pop(0)

        monkeypatch.setattr(peers.PeerLink, "open", open_link)
        self.peers = Peers(PeerPolicy.parse((), "127.0.0.1"))

    def transfer(self, session: int = 1) -> bool:
        return self.peers.transfer(HERE, session, b"record", b"data")


@pytest.fixture
def prepare(monkeypatch: pytest.MonkeyPatch):
    return lambda *links: Bench(monkeypatch, *links)


def test_a_connection_is_used_again_for_the_same_session_alone(prepare):
    bench = prepare(FakeLink(), FakeLink())
    assert [bench.transfer(s) for s in (1, 1, 2, 1, 2)] == [True] * 5
    assert bench.opened == [1, 2]


def test_a_kept_connection_that_turns_out_dead_is_tried_again_once(prepare):
    bench = prepare(FakeLink(), FakeLink(LOST, LOST), FakeLink())
    assert bench.transfer()
    bench.links[0].troubles.append(LOST)
    assert not bench.transfer()
    assert bench.opened == [1, 1]
    assert bench.links[0].closed
    assert bench.links[1].closed
    assert bench.transfer()


def test_a_fresh_connection_that_fails_is_not_tried_again(prepare):
    bench = prepare(FakeLink(LOST), FakeLink())
    assert not bench.transfer()
    assert bench.opened == [1]
    assert bench.links[0].closed


def test_a_peer_that_is_silent_is_not_asked_twice(prepare):
    silent = DeadlineError("nothing came for 30 s", peer=HERE, seconds=30)
    bench = prepare(FakeLink(), FakeLink())
    assert bench.transfer()
    bench.links[0].troubles.append(silent)
    assert not bench.transfer()
    assert bench.opened == [1]
    assert bench.links[0].closed


def test_a_kept_connection_that_is_known_to_be_dead_is_not_used(prepare):
    bench = prepare(FakeLink(), FakeLink())
    assert bench.transfer()
    bench.links[0].good = False
    assert bench.transfer()
    assert (bench.links[0].pushed, bench.links[0].closed) == (1, True)


def test_a_refusal_keeps_the_connection(prepare):
    bench = prepare(FakeLink(RefusedError("no such buffer")))
    assert not bench.transfer()
    assert bench.transfer()
    assert bench.opened == [1]


def test_nonsense_closes_the_connection(prepare):
    bench = prepare(FakeLink(PeerError("nonsense")), FakeLink())
    assert not bench.transfer()
    assert bench.links[0].closed


def test_kept_connections_are_bounded_and_end_with_the_session(prepare, monkeypatch):
    monkeypatch.setattr(peers, "MOST_LINKS", 3)
    bench = prepare(*(FakeLink() for _ in range(5)))
    for session in range(5):
        assert bench.transfer(session)
    assert [link.closed for link in bench.links] == [True, True, False, False, False]
    bench.peers.close()
    bench.peers.close()
    assert all(link.closed for link in bench.links)
