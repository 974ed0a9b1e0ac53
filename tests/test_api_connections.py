"""Connections to `ringline api` that never ask: they end, and keep nobody out."""

import socket
import urllib.parse

import pytest

import make_model
from make_model import ModelSpec
from ringline.api.connections import HEADER_SECONDS, MOST_CONNECTIONS
from tests.api_server import api_server
from tests.peers.processes import patience

GET = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )
    with api_server(model, "--parallel", 2, "-c", 1024) as found:
        yield found


def connect(server):
    address = urllib.parse.urlsplit(server.url)
    found = socket.create_connection((address.hostname, address.port), patience(60))
    found.settimeout(patience(HEADER_SECONDS + 60))
    return found


def answered(connection):
    """The whole answer to GET; it has a length."""
    connection.sendall(GET)
    text = b""
    while b'"data"' not in text:
        part = connection.recv(65536)
        assert part, text
        text += part
    return text.startswith(b"HTTP/1.1 200")


def test_who_sends_no_whole_header_is_closed_and_who_does_is_not(server):
    silent, half, second = connect(server), connect(server), connect(server)
    half.sendall(GET[:-1])
    assert answered(second)
    second.sendall(GET[:9])  # its next request: the deadline is a new one
    for connection in (silent, half, second):
        assert connection.recv(1) == b""
        connection.close()
    assert server.ask("/v1/models").status == 200


def test_a_header_that_comes_in_pieces_is_a_header(server):
    with connect(server) as slow:
        for byte in GET[:-1]:
            slow.sendall(bytes([byte]))
        slow.sendall(GET[-1:])
        assert slow.recv(15) == b"HTTP/1.1 200 OK"


def test_more_silent_connections_than_there_may_be_keep_nobody_out(server):
    crowd = [connect(server) for _ in range(MOST_CONNECTIONS + 50)]
    try:
        assert server.ask("/v1/models").status == 200
        crowd[0].settimeout(patience(60))
        assert crowd[0].recv(1) == b""  # the first has waited longest
        body = {"prompt": "Go", "max_tokens": 3, "temperature": 0}
        assert server.ask("/v1/completions", body).status == 200
    finally:
        for connection in crowd:
            connection.close()
