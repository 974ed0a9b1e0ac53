"""Silence and slowness: who costs a node something without using it is dropped, and told why."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringline import settings
from ringline.client.ring import RemoteDevices
from ringline.errors import NetworkError, RefusedError, RemoteError
from ringline.net.endpoint import Endpoint
from ringline.wire.commands import Command
from ringline.wire.extension import RecvTensor
from ringline.wire.frames import REQUEST_HEADER
from ringline.wire.messages import DeviceCount, GetTensor, SetTensor
from tests.peers.processes import Peer, patience, ringline_node
from tests.raw_nodes import endpoint_of, raw_node, read_banner
from tests.server_client import Client, wait_for

#: seconds of silence that the node of this file bears.
LIMIT = 1.0
REASON = "the client has said nothing for 1 s"


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--threads=1", f"--idle-timeout={LIMIT:g}") as node:
        yield node


def wait_longer() -> None:
    """Let pass what a silent client does not survive; a machine under load may need more."""
    time.sleep(2.5 * LIMIT)


def test_a_silent_client_is_dropped_and_told_why(node):
    with Client.extended(node.endpoint) as client:
        with pytest.raises(RefusedError, match=REASON):
            client.reply()
        assert client.closed()
        number = f"[session {client.greeting.session:08x}]: warning: {REASON}"
        wait_for("the reason in the log", lambda: number in node.log())


def test_one_connection_that_speaks_keeps_them_all(node):
    with Client.extended(node.endpoint) as client, client.attach(node.endpoint) as attached:
        for _ in range(10):
            attached.ping()
            time.sleep(0.3 * LIMIT)
        client.ping()


def test_a_client_whose_command_takes_long_is_not_silent(node):
    with Client.extended(node.endpoint, level=4) as client:
        tensor = client.alloc(64).vector(1, 16)
        deadline_ms = int(2500 * LIMIT)
        client.post(RecvTensor(tensor.pack(), 0, 64, b"t" * 16, deadline_ms))
        with pytest.raises(RefusedError, match="no data within"):
            client.ping()


def test_a_stock_client_is_dropped_unless_it_holds_memory(node):
    with Client.stock(node.endpoint) as holder, Client.stock(node.endpoint) as idler:
        tensor = holder.alloc(64).vector(1, 16)
        idler.call(DeviceCount())
        assert idler.closed()
        wait_longer()
        assert len(holder.read(tensor, 64)) == 64


def test_who_says_hello_and_nothing_else_is_dropped(node):
    with Client.stock(node.endpoint) as client:
        assert client.closed()


def test_a_ring_that_waits_is_kept_by_its_heartbeat(node, monkeypatch):
    monkeypatch.setattr(settings, "PING_INTERVAL", 0.1 * LIMIT)
    with RemoteDevices([Endpoint.parse(node.endpoint)]) as ring:
        wait_longer()
        ring.check()
        assert ring.nodes[0].alloc_buffer(0, 64).handle
        sent = ring.nodes[0].traffic.commands
        assert sent["PING"] > 3


def test_without_a_heartbeat_the_ring_is_told_what_happened(node, monkeypatch):
    monkeypatch.setattr(settings, "PING_INTERVAL", 3600.0)
    with RemoteDevices([Endpoint.parse(node.endpoint)]) as ring:
        wait_longer()
        with pytest.raises(RemoteError, match=node.endpoint):
            ring.nodes[0].alloc_buffer(0, 64)


def test_a_heartbeat_that_finds_a_node_gone_says_so_at_the_next_check(monkeypatch):
    monkeypatch.setattr(settings, "PING_INTERVAL", 0.1)
    with ringline_node() as node, RemoteDevices([Endpoint.parse(node.endpoint)]) as ring:
        node.kill()
        wait_for("the heartbeat to notice", ring.failures.failed)
        with pytest.raises(NetworkError, match=f"node {node.endpoint}: PING: "):
            ring.check()


@pytest.mark.parametrize("endless", [0, "1e300"])
def test_who_may_be_silent_is_not_dropped(endless):
    with (
        ringline_node(f"--idle-timeout={endless}") as node,
        Client.extended(node.endpoint) as client,
    ):
        time.sleep(1.5 * LIMIT)
        client.ping()


def test_both_ends_let_the_kernel_notice_a_host_that_is_gone(node):
    with RemoteDevices([Endpoint.parse(node.endpoint)]) as ring:
        port = ring.nodes[0].main._stream._socket.getsockname()[1]
        wait_for("keep-alive at both ends", lambda: timers(port) == ["02", "02"])


def timers(port: int) -> list[str]:
    """The timers that run for connections of a port, here and there; 02 is keep-alive."""
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if f"{port:04X}" in (local.partition(":")[2], remote.partition(":")[2]):
            found.append(timer.partition(":")[0])
    return found


SLOW = """
import ringline.server.connection as connection
settings.BULK_TIMEOUT, connection.SLOWEST = 1.0, 1 << 60
"""


def test_a_reader_that_only_trickles_is_dropped_in_bounded_time():
    """It takes something every moment, so no silence ever lasts; the whole has a deadline."""
    size = 64 << 20
    with raw_node(prelude=SLOW) as process:
        with Client.extended(endpoint_of(read_banner(process))) as client:
            tensor = client.alloc(size).vector(1, size // 4)
            client.post(GetTensor(tensor.pack(), 0, size))
            with pytest.raises(NetworkError, match=r"closed|lost"):
                trickle(client)
        process.terminate()
        _, log = process.communicate(timeout=patience(10))
    assert "took too little data in 1 s" in log


def test_a_writer_that_only_trickles_is_dropped_in_bounded_time():
    """It says something every moment; its message has a deadline as a whole all the same."""
    size = 1 << 20
    with raw_node(prelude=SLOW) as process:
        with Client.extended(endpoint_of(read_banner(process))) as client:
            tensor = client.alloc(size).vector(1, size // 4)
            whole = SetTensor.LAYOUT.size + size
            head = REQUEST_HEADER.pack(Command.SET_TENSOR, whole)
            client.stream.send([head, SetTensor(tensor.pack(), 0, 0).pack()])
            with pytest.raises(NetworkError, match=r"closed|lost"):
                trickle_out(client)
        process.terminate()
        _, log = process.communicate(timeout=patience(10))
    assert "sent too little data in 1 s" in log


def trickle_out(client: Client) -> None:
    """Send byte after byte of a message that is never whole."""
    deadline = time.monotonic() + patience(30)
    while time.monotonic() < deadline:
        client.stream.send([b"x"])
        time.sleep(0.02)


def trickle(client: Client) -> None:
    """Read a little of what has come, and again, until there is no more."""
    piece, deadline = memoryview(bytearray(1 << 16)), time.monotonic() + patience(30)
    while time.monotonic() < deadline:
        client.stream.read_into(piece)
        time.sleep(0.02)
