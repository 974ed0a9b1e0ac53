"""The node's log: one line an event, for people and for programs, whatever a client says."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from datetime import datetime

import pytest

from ringline.errors import RefusedError
from ringline.server import log
from ringline.wire.extension import CopyTensorTo
from tests.peers.processes import Peer, patience, ringline_node
from tests.server_client import Client, session_of, wait_for


def events(node: Peer) -> list[dict[str, object]]:
    """The lines of a log in JSON; every line but the banner's must be one."""
    lines = node.log().splitlines()
    ready = next(n for n, line in enumerate(lines) if line.startswith("ringline: ready on"))
    return [json.loads(line) for line in lines[ready + 1 :]]


def seen(node: Peer, event: str) -> dict[str, object]:
    """The one event of its kind, once it is there."""
    wait_for(event, lambda: event in node.log())
    (found,) = [entry for entry in events(node) if entry["event"] == event]
    return found


@pytest.fixture
def node():
    with ringline_node("--threads=1", "--log-format=json") as node:
        yield node


def test_a_session_is_told_from_beginning_to_end(node):
    with Client.extended(node.endpoint) as client:
        number = f"{client.greeting.session:08x}"
        begin = seen(node, "session_begin")
        with client.attach(node.endpoint) as attached:
            attached.ping()
    end = seen(node, "session_end")
    join = seen(node, "session_join")
    assert {entry["session"] for entry in (begin, join, end)} == {number}
    assert begin["client"] == end["client"] != join["client"]
    assert (begin["level"], join["role"], end["code"]) == ("info", "attach", 0)
    for entry in (begin, join, end):
        assert datetime.fromisoformat(str(entry["time"])).utcoffset() is not None
    assert events(node)[0]["endpoint"] == node.endpoint


def test_a_crash_is_told_with_signal_and_last_command(node):
    with Client.extended(node.endpoint) as client:
        client.ping()
        begin = seen(node, "session_begin")
        pid, number = begin["pid"], begin["session"]
        os.kill(pid, signal.SIGKILL)
        crash = seen(node, "session_crash")
    assert (crash["session"], crash["last_command"], crash["code"]) == (number, "PING", -9)
    assert crash["level"] == "warning"


def test_what_a_session_logs_names_session_client_and_command(node):
    with Client.extended(node.endpoint) as client:
        number = f"{client.greeting.session:08x}"
        client.send(1, (7).to_bytes(4, "little"))
        with pytest.raises(RefusedError):
            client.reply()
    refused = seen(node, "refused")
    assert (refused["session"], refused["command"]) == (number, "GET_ALIGNMENT")
    assert refused["client"] == seen(node, "session_begin")["client"]


def test_a_stranger_is_one_event(node):
    with socket.create_connection(node.endpoint.split(":"), patience(5)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n")
        assert stranger.recv(1) == b""
    assert "the first byte is 71" in str(seen(node, "not_a_client")["message"])


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_client_cannot_write_lines_of_its_own(log_format):
    words = "127.0.0.1\nringline serve: session 00000000 begins: \x1b[31mnobody"
    with ringline_node(f"--log-format={log_format}") as node:
        with Client.extended(node.endpoint) as client:
            tensor = client.alloc(64).vector(1, 16)
            raw = client.call(CopyTensorTo(tensor.pack(), tensor.pack(), 64, words))
            assert raw == b"\0"
        wait_for("the refusal", lambda: "no transfer to" in node.log())
        assert "\x1b" not in node.log()
        (line,) = [line for line in node.log().splitlines() if "nobody" in line]
        assert "session 00000000 begins" in line


def test_tensor_data_and_secrets_are_never_logged():
    words = b"SECRETSECRETSECRETSECRETSECRETSE"
    with ringline_node("--log-format=json", env={"RINGLINE_DEBUG": "3"}) as node:
        with Client.extended(node.endpoint) as client:
            tensor = client.alloc(32).vector(1, 8)
            client.write(tensor, words)
            assert client.read(tensor, 32) == words
            secret = client.greeting.secret
        seen(node, "session_end")
        assert "SECRET" not in node.log()
        assert secret.hex() not in node.log()


def test_what_a_flood_repeats_is_counted(monkeypatch):
    calm, now = log._Calm(), [1000.0]

    def record(event: str) -> logging.LogRecord:
        made = logging.LogRecord("x", logging.WARNING, "", 0, "%s left", ("he",), None)
        made.event, made.created = event, now[0]
        return made

    assert sum(calm.filter(record("handshake_evicted")) for _ in range(100)) == 10
    assert all(calm.filter(record("session_crash")) for _ in range(100))
    now[0] += 1.0
    late = record("handshake_evicted")
    assert calm.filter(late)
    assert late.getMessage() == "he left (and 90 more like it before)"


def test_an_unknown_format_is_a_usage_error():
    from tests.test_server_serve import serve

    done = serve("--log-format=xml")
    assert done.returncode == 2
    assert "--log-format" in done.stderr


def test_text_is_for_people(node):
    with ringline_node() as plain, session_of(plain) as (client, _):
        client.ping()
        assert f"session {client.greeting.session:08x} begins: 127.0.0.1:" in plain.log()
