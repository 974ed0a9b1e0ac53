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

#: seconds of silence that the node of this file bears; a test that is held up for longer by the
#: machine is silent, too.
LIMIT = patience(2.5)
REASON = f"the client has said nothing for {LIMIT:g} s"


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--threads=1", f"--idle-timeout={LIMIT:g}") as node:
        yield node


def wait_longer() -> None:
    """Let pass what a silent client does not survive."""
    time.sleep(1.5 * LIMIT)


def wait_dropped(node: Peer, session: int) -> None:
    """Wait until a client is dropped for its silence."""
    words = f"[session {session:08x}]: warning: {REASON}"
    wait_for("the reason in the log", lambda: words in node.log())


def test_a_silent_client_is_dropped_and_told_why(node):
    with Client.extended(node.endpoint) as client:
        with pytest.raises(RefusedError, match=REASON):
            client.reply()
        assert client.closed()
        wait_dropped(node, client.greeting.session)


def test_one_connection_that_speaks_keeps_them_all(node):
    with Client.extended(node.endpoint) as client, client.attach(node.endpoint) as attached:
        for _ in range(8):
            attached.ping()
            time.sleep(0.2 * LIMIT)
        client.ping()


def test_a_client_whose_command_takes_long_is_not_silent(node):
    with Client.extended(node.endpoint, level=4) as client:
        tensor = client.alloc(64).vector(1, 16)
        deadline_ms = int(1500 * LIMIT)
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
        wait_dropped(node, ring.nodes[0].greeting.session)
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
        time.sleep(1.5)
        client.ping()


def test_both_ends_let_the_kernel_notice_a_host_that_is_gone():
    with ringline_node() as node, RemoteDevices([Endpoint.parse(node.endpoint)]) as ring:
        here = ring.nodes[0].main._stream._socket.getsockname()[1]
        there = Endpoint.parse(node.endpoint).port
        wait_for("keep-alive at both ends", lambda: timers(here, there) == ["02", "02"])


def timers(*ports: int) -> list[str]:
    """The timers that run at both ends of the connection between two ports; 02 is keep-alive.

    One port alone would not do: the kernel uses the number of an old connection again.
    """
    found = []
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, _, timer, *_ = line.split()
        if {int(end.partition(":")[2], 16) for end in (local, remote)} == set(ports):
            found.append(timer.partition(":")[0])
    return found


#: seconds in which a message has to be through.
WHOLE = patience(2)
SLOW = f"""
import ringline.server.connection as connection
settings.BULK_TIMEOUT, connection.SLOWEST = {WHOLE}, 1 << 60
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
    assert f"took too little data in {WHOLE:g} s" in log


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
    assert f"sent too little data in {WHOLE:g} s" in log


def trickle_out(client: Client) -> None:
    """Send byte after byte of a message that is never whole."""
    deadline = time.monotonic() + patience(30)
    while time.monotonic() < deadline:
        client.stream.send([b"x"])
        time.sleep(0.02)


def trickle(client: Client) -> None:
    """Read a little of what has come, and again, until there is no more.

    Enough of it that the node can send something long before WHOLE is over: it may take a third of
    the kernel's buffers to be free for that.
    """
    piece, deadline = memoryview(bytearray(1 << 18)), time.monotonic() + patience(30)
    while time.monotonic() < deadline:
        client.stream.read_into(piece)
        time.sleep(0.02)
