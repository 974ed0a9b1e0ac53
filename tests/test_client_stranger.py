"""Whom a client meets where no node listens: told apart by what they say first, or by silence."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from ringline.client import greeting, stranger
from ringline.client.counters import Traffic
from ringline.client.greeting import greet
from ringline.client.stranger import ask, known_by
from ringline.errors import NetworkError
from ringline.net.endpoint import Endpoint
from ringline.server.handshake import HELLO_REPLY
from tests.peers.dead_ends import deaf_endpoint, refusing_endpoint
from tests.peers.processes import patience, ringline_node, stock_server
from tests.server_client import Client
from tests.test_cli_errors import http_server


@pytest.mark.parametrize(
    ("first", "who"),
    [
        (b"HTTP/1.1", "it is an HTTP server"),
        (b"SSH-2.0-", "it is an SSH server"),
        (bytes([0x16, 3, 3]), "it speaks TLS"),
        (b"+OK\r\n", "it says '+OK'"),
        (HELLO_REPLY[:8], ""),
        (HELLO_REPLY, ""),
        (b"", ""),
        (b"\xff" * 8, ""),
    ],
)
def test_strangers_are_known_by_their_first_bytes(first, who):
    assert known_by(first) == who


def refusal(endpoint: str) -> str:
    with pytest.raises(NetworkError) as failure:
        greet(Endpoint.parse(endpoint), Traffic())
    return str(failure.value)


@pytest.fixture
def no_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who had to wait for the deadline of HELLO would fail the test by its time limit.

    A server of this process may need more than a second for its answer while the machine is busy.
    """
    monkeypatch.setattr(greeting, "HELLO_TIMEOUT", 10_000.0)
    monkeypatch.setattr(stranger, "_PATIENCE", patience(30))


@contextmanager
def tls_server(folder: Path) -> Iterator[str]:
    """A server that waits for the handshake of TLS; its endpoint."""
    key, certificate = folder / "key.pem", folder / "certificate.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
    command += ["-nodes", "-subj", "/CN=stranger", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_serve_tls, args=(listener, context))
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def _serve_tls(listener: socket.socket, context: ssl.SSLContext) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            client.settimeout(patience(30))
            with client, suppress(OSError), context.wrap_socket(client, server_side=True) as tls:
                tls.recv(1)


def test_a_tls_server_is_named_without_waiting(tmp_path, no_deadline):
    with tls_server(tmp_path) as endpoint:
        assert "it speaks TLS" in refusal(endpoint)


def test_an_http_server_that_waits_for_a_line_is_named_without_waiting(no_deadline):
    with http_server() as endpoint:
        assert "it is an HTTP server" in refusal(endpoint)


def test_a_closed_port_is_named_without_waiting(no_deadline):
    with refusing_endpoint() as endpoint:
        assert "cannot connect (Connection refused)" in refusal(endpoint)


def test_a_silent_port_is_named_after_the_deadline_with_what_it_may_be(monkeypatch):
    monkeypatch.setattr(greeting, "HELLO_TIMEOUT", 1.0)
    with deaf_endpoint() as endpoint:
        sentence = refusal(endpoint)
    assert "nothing came for 1 s: it takes connections and says nothing" in sentence
    assert "while it serves another client" in sentence


def test_a_busy_stock_server_is_waited_for_and_not_disturbed():
    """It answers when its client has left, although it was asked meanwhile who it is."""
    with stock_server(1) as (server,), Client.stock(server.endpoint) as first:
        threading.Timer(2.5, first.close).start()
        connection, hello = greet(Endpoint.parse(server.endpoint), Traffic())
        assert hello.level == 0
        connection.close()
        assert server.alive


def test_a_node_that_is_asked_who_it_is_goes_on():
    with ringline_node() as node:
        assert ask(Endpoint.parse(node.endpoint)) == ""
        with Client.extended(node.endpoint) as client:
            client.ping()
