"""A relay passes on bytes, ends and pressure, and holds little."""

from __future__ import annotations

import hashlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress

import pytest

from ringline import settings
from ringline.net.tls import TlsFiles, TlsSocket
from ringline.server.relay import relay
from tests.peers.processes import patience
from tests.ring_certificates import Authority
from tests.tls_pairs import receive, send_all, tls_pair

BULK = hashlib.shake_256(b"relay").digest(7_000_003)
#: what the kernel and a relay may hold between two ends, bytes.
MOST_HELD = 6 << 20
Ends = tuple[TlsSocket, socket.socket]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("ring")).machine("both")


@pytest.fixture
def ends(files: TlsFiles) -> Iterator[Ends]:
    """A client's TLS connection, and the socket that its session has."""
    client, server = tls_pair(files)
    session, inner = socket.socketpair()
    session.setblocking(False)
    thread = threading.Thread(target=relay, args=(server, inner))
    thread.start()
    with ExitStack() as stack:
        stack.callback(thread.join, patience(20))
        stack.enter_context(closing(session))
        stack.enter_context(closing(client))
        yield client, session
    assert not thread.is_alive()


def test_bulk_goes_both_ways_at_once(ends):
    got: dict[int, bytes] = {}

    def read(index: int) -> None:
        got[index] = receive(ends[index], len(BULK))

    threads = [threading.Thread(target=read, args=(index,)) for index in (0, 1)]
    threads += [threading.Thread(target=send_all, args=(end, BULK)) for end in ends]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {0: BULK, 1: BULK}


def test_a_client_that_ends_its_direction_still_hears_the_session(ends):
    client, session = ends
    send_all(client, b"all I have to say")
    client.end_writing()
    assert receive(session, 1000) == b"all I have to say"
    send_all(session, BULK[:300_000])
    session.close()
    assert receive(client, 1 << 20) == BULK[:300_000]


def test_a_session_that_ends_its_direction_still_hears_the_client(ends):
    client, session = ends
    send_all(session, b"all I have to say")
    session.shutdown(socket.SHUT_WR)
    assert receive(client, 1000) == b"all I have to say"
    send_all(client, BULK[:300_000])
    client.close()
    assert receive(session, 1 << 20) == BULK[:300_000]


@pytest.mark.parametrize("outward", [True, False])
def test_a_slow_end_slows_the_other_one_down(outward, ends):
    slow, fast = ends if outward else reversed(ends)
    sent, view = 0, memoryview(bytes(64 << 20))
    until = threading.Event()
    for _ in range(20):
        with suppress(BlockingIOError):
            while True:
                sent += fast.sendmsg([view[sent : sent + 100_000]])
        until.wait(0.02)
    assert sent < MOST_HELD
    assert len(receive(slow, sent)) == sent


def test_the_last_words_of_a_session_that_has_not_read_all_reach_the_client(ends):
    client, session = ends
    send_all(client, BULK[:100_000])
    assert receive(session, 10) == BULK[:10]
    send_all(session, b"enough")
    session.close()
    assert receive(client, 1000) == b"enough"


def test_a_client_that_is_cut_off_is_an_end_of_file_for_the_session(ends):
    client, session = ends
    client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.forget()
    assert receive(session, 1) == b""


def test_a_client_that_takes_no_last_words_does_not_keep_the_relay(files, monkeypatch):
    monkeypatch.setattr(settings, "BULK_TIMEOUT", 0.2)
    client, server = tls_pair(files)
    session, inner = socket.socketpair()
    session.setblocking(False)
    thread = threading.Thread(target=relay, args=(server, inner))
    thread.start()
    with closing(client):
        with suppress(BlockingIOError):
            while True:
                session.send(BULK[:100_000])
        session.close()
        thread.join(patience(20))
        assert not thread.is_alive()
