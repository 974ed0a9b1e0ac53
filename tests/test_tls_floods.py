"""Silence, floods and crashes at a TLS port: bounded, and nobody else notices."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ringline.net.tls import TlsFiles
from tests.peers.process_tree import children, tree_memory, watched
from tests.peers.processes import Peer, patience, ringline_node
from tests.ring_certificates import Authority, flags
from tests.server_client import Client, wait_for

#: half-open connections; more than a doorman keeps.
MANY = 150
#: what they may cost a node, bytes.
SLACK = 16 << 20
#: seconds that a handshake may take, where a test waits for that deadline; a good one needs less,
#: on a busy machine too.
SECONDS = patience(3)
HURRY = f"from ringline import settings; settings.HELLO_TIMEOUT = {SECONDS}"
#: the beginning of a TLS handshake, and then nothing.
BEGINNING = bytes([0x16, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("ring")).machine("node")


@pytest.fixture
def node(files: TlsFiles) -> Iterator[Peer]:
    with ringline_node("--threads=1", *flags(files)) as node:
        yield node


def dial(node: Peer, words: bytes = b"") -> socket.socket:
    host, _, port = node.endpoint.rpartition(":")
    sock = socket.create_connection((host, int(port)), patience(10))
    sock.sendall(words)
    return sock


def doorman_of(node: Peer) -> int:
    """The gatekeeper's first child; its relays are its own children."""
    return children(node.process.pid)[0]


def test_half_open_connections_disturb_nobody_and_cost_little(node, files):
    with ExitStack() as stack, Client.extended(node.endpoint, tls=files) as client:
        client.ping()
        before = tree_memory(node.process.pid)
        for index in range(MANY):
            stack.enter_context(dial(node, BEGINNING if index % 2 else b""))
            if index % 10 == 0:
                client.ping()
        with Client.extended(node.endpoint, tls=files) as late:
            late.ping()
        client.ping()
        assert tree_memory(node.process.pid) - before < SLACK
        wait_for("the flood in the log", lambda: "says nothing and" in node.log())


@pytest.mark.parametrize("words", [b"", BEGINNING])
def test_who_does_not_finish_the_handshake_is_dropped_at_the_deadline(words, files):
    with (
        ringline_node(*flags(files), prelude=HURRY) as node,
        dial(node, words) as silent,
        Client.extended(node.endpoint, tls=files) as client,
    ):
        assert silent.recv(1) == b""
        client.ping()
        assert f"closed, no whole TLS within {SECONDS:g} s" in node.log()


def test_tls_and_hello_have_one_deadline_together(files):
    """The certificate is shown at once, HELLO never comes."""
    with ringline_node(*flags(files), prelude=HURRY) as node:
        client = Client(node.endpoint, files)
        assert client.closed()
        client.close()
        assert "closed, no whole HELLO within" in node.log()
        (seconds,) = [
            float(line.split(" within ")[1].split()[0])
            for line in node.log().splitlines()
            if "no whole HELLO" in line
        ]
        assert seconds < SECONDS, "what TLS took is not given again"


def test_a_doorman_that_dies_is_replaced_and_who_is_inside_stays(node, files):
    with Client.extended(node.endpoint, tls=files) as client:
        doorman = doorman_of(node)
        os.kill(doorman, signal.SIGKILL)
        wait_for("another doorman", lambda: "another one begins" in node.log())
        with Client.extended(node.endpoint, tls=files) as late:
            late.ping()
        client.ping()
        assert node.alive


def test_a_relay_that_dies_ends_its_own_connection_only(node, files):
    with (
        Client.extended(node.endpoint, tls=files) as first,
        Client.extended(node.endpoint, tls=files) as second,
    ):
        relays = children(doorman_of(node))
        assert len(relays) == 2
        os.kill(relays[0], signal.SIGSEGV)
        assert first.closed()
        second.ping()
        wait_for("the crash in the log", lambda: "its relay ended with code -11" in node.log())
        wait_for("the end of its session", lambda: "ended after" in node.log())


def test_nothing_is_left_of_a_node_that_has_ended(files):
    with ringline_node("--threads=1", *flags(files)) as node:
        client = Client.extended(node.endpoint, tls=files)
        doorman = doorman_of(node)
        with watched([doorman, *children(doorman)]) as family:
            assert len(family) == 2
            node.stop()
            assert client.closed()
            client.close()
            assert all(process.wait_gone(10) for process in family)


def test_a_node_that_is_killed_takes_doorman_and_relays_along(files):
    with (
        ringline_node("--threads=1", *flags(files)) as node,
        Client.extended(node.endpoint, tls=files),
    ):
        doorman = doorman_of(node)
        with watched([doorman, *children(doorman)]) as family:
            assert len(family) == 2
            node.kill()
            assert all(process.wait_gone(10) for process in family)
