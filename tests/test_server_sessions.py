"""The life of a node and its sessions: start, limits, isolation, ends of all kinds."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringline.errors import NetworkError, RefusedError
from ringline.server.limits import STOP_TIMEOUT
from ringline.wire.commands import EXTENSION_LEVEL, Command
from ringline.wire.extension import ExtHello, Role
from ringline.wire.frames import REQUEST_HEADER, request_frame
from ringline.wire.messages import DeviceCount, GetDeviceMemory, Hello
from tests.peers.processes import ROOT, Peer, patience, ringline_node
from tests.raw_nodes import endpoint_of, raw_node, read_banner
from tests.server_client import Client, addition, children, floats, op, session_of, wait_for

I32 = 26
#: seconds for a node to end: its processes get STOP_TIMEOUT of them, the machine may take the rest.
END = 10.0


@pytest.fixture
def node() -> Iterator[Peer]:
    with ringline_node("--device=CPU", "--threads=1") as node:
        yield node


def is_closed(sock: socket.socket) -> bool:
    """Whether the other end has closed a connection, sending nothing."""
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


def test_the_banner_says_what_the_node_is_and_nothing_follows_it():
    with raw_node("--threads=1") as process:
        banner = read_banner(process)
        text = "\n".join(banner)
        for fact in (
            "ggml RPC 7.0.0",
            f"level {EXTENSION_LEVEL}",
            "llama-cpp-python 0.3.36",
            "CPU",
            "MiB free",
        ):
            assert fact in text
        with Client.stock(endpoint_of(banner)) as client:
            client.call(DeviceCount())
            client.send(200)
            assert client.closed()
        process.send_signal(signal.SIGTERM)
        rest, log = process.communicate(timeout=patience(END))
        assert rest == ""
        assert "unknown command 200" in log


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_node_and_sessions_within_two_seconds_with_exit_code_0(number):
    """What the node waits for is bounded; how soon a busy machine lets it end is not its own."""
    assert STOP_TIMEOUT < 2
    with raw_node("--threads=1") as process, ExitStack() as stack:
        endpoint = endpoint_of(read_banner(process))
        clients = [stack.enter_context(Client.extended(endpoint)) for _ in range(3)]
        half_open = stack.enter_context(socket.create_connection(endpoint.split(":")))
        below = children(process.pid)
        assert len(below) >= 3
        process.send_signal(number)
        assert process.wait(patience(END)) == 0
        for pid in below:
            assert not Path(f"/proc/{pid}").exists()
        assert all(client.closed() for client in clients)
        assert is_closed(half_open)
        assert "Traceback" not in process.stderr.read()


def test_a_signal_ends_a_session_that_computes():
    with raw_node("--threads=1") as process:
        endpoint = endpoint_of(read_banner(process))
        with Client.extended(endpoint) as client:
            compute_for_long(client)
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            assert process.wait(patience(END)) == 0


def test_a_client_that_leaves_while_its_session_computes_keeps_no_device_from_others(node):
    """Two hundred products are asked for: unless it looks at the client, it does them all."""
    with session_of(node) as (client, pid):
        compute_for_long(client)
    wait_for("the session's end", lambda: pid not in children(node.process.pid), 30)
    assert "the client has left in the middle of GRAPH_" in node.log()


def compute_for_long(client: Client) -> None:
    """Queue matrix products that take many seconds, and do not wait for them."""
    n = 2048
    whole = 4 * n * n
    block = client.alloc(3 * whole)
    square = {"ne": (n, n, 1, 1), "nb": (4, 4 * n, whole, whole)}
    tensors = [replace(block.vector(i, 1, at=(i - 1) * whole), **square) for i in (1, 2, 3)]
    tensors[2] = replace(tensors[2], op=op("MUL_MAT"), src=(1, 2, *(0,) * 8))
    client.compute([3], tensors)
    for _ in range(200):
        client.recompute()


def test_a_node_ends_with_standard_input_where_that_was_asked_for():
    with raw_node("--until-stdin-closes") as process:
        read_banner(process)
        process.stdin.write("this is not the end\n")
        process.stdin.flush()
        time.sleep(0.1)
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(patience(END)) == 0


def test_standard_input_that_cannot_close_is_refused():
    with Path(os.devnull).open() as nothing:
        done = subprocess.run(
            [sys.executable, "-m", "ringline", "serve", "-p0", "--until-stdin-closes"],
            cwd=ROOT,
            stdin=nothing,
            capture_output=True,
            text=True,
            timeout=patience(20),
            check=False,
        )
    assert done.returncode == 1
    assert "--until-stdin-closes needs a pipe" in done.stderr


def test_session_processes_end_when_the_gatekeeper_is_killed(node):
    with Client.extended(node.endpoint) as client:
        client.ping()
        below = children(node.process.pid)
        node.kill()
        assert client.closed()
        wait_for("all children to end", lambda: not any(Path(f"/proc/{p}").exists() for p in below))


def test_a_client_that_leaves_frees_its_memory(node):
    def left() -> bool:
        return "ended after" in node.log()

    with session_of(node) as (client, pid):
        tensor = client.alloc(64 << 20).vector(1, 16 << 20)
        client.write(tensor, bytes(64 << 20))
        client.ping()
        assert pid in children(node.process.pid)
        assert not left()
    wait_for("the session's end in the log", left)
    assert pid not in children(node.process.pid)


def test_a_killed_session_is_logged_and_others_go_on(node):
    with Client.extended(node.endpoint) as other, ExitStack() as stack:
        tensor = other.alloc(64).vector(1, 16)
        other.write(tensor, floats(*range(16)))
        other.ping()
        client, pid = stack.enter_context(session_of(node))
        client.call(GetDeviceMemory(0))
        os.kill(pid, signal.SIGKILL)
        assert client.closed()
        wait_for("the log", lambda: "was killed by SIGKILL" in node.log())
        assert "its last command was GET_DEVICE_MEMORY; 1 other sessions go on" in node.log()
        assert other.read(tensor, 64) == floats(*range(16))
        with Client.extended(node.endpoint) as third:
            third.ping()


def test_where_memory_runs_out_the_kernel_ends_a_session_and_no_gatekeeper(node):
    """A node does not fall for one client's greed: a session counts as if it held much more."""

    def adjustment(pid: int) -> int:
        return int(Path(f"/proc/{pid}/oom_score_adj").read_text())

    with session_of(node) as (_, pid):
        assert adjustment(pid) == min(1000, adjustment(node.process.pid) + 500)


def test_a_graph_that_kills_ggml_costs_one_client_alone(node):
    """An index out of range depends on data: no check of the graph can catch it."""
    with Client.extended(node.endpoint) as other, Client.extended(node.endpoint) as client:
        block = client.alloc(4096)
        table = block.vector(1, 8)
        rows = replace(block.vector(2, 1, at=64), type=I32)
        picked = block.vector(3, 8, at=128, op=op("GET_ROWS"), src=(1, 2, *(0,) * 8))
        client.write(rows, np.array([1 << 30], np.int32).tobytes())
        client.compute([3], [table, rows, picked])
        client.send(Command.PING)
        assert client.closed()
        wait_for("the log", lambda: "its last command was GRAPH_COMPUTE" in node.log())
        other.ping()


def test_two_clients_at_once_have_their_own_buffers_and_graphs(node):
    with Client.extended(node.endpoint) as one, Client.stock(node.endpoint) as two:
        blocks = [client.alloc(4096) for client in (one, two)]
        tensors = [addition(block) for block in blocks]
        for value, client, (left, right, total) in zip((1, 2), (one, two), tensors, strict=True):
            client.write(left, floats(*[value] * 8))
            client.write(right, floats(*[10 * value] * 8))
            client.compute([3], [left, right, total])
        assert one.read(tensors[0][2], 32) == floats(*[11] * 8)
        assert two.read(tensors[1][2], 32) == floats(*[22] * 8)


def test_sessions_have_a_limit_that_is_told_and_frees_up():
    with ringline_node("--max-sessions=2") as node, ExitStack() as stack:
        first = Client.extended(node.endpoint)
        second = stack.enter_context(Client.stock(node.endpoint))
        second.call(DeviceCount())
        with pytest.raises(RefusedError, match="serves 2 clients already, its limit"):
            Client.extended(node.endpoint)
        with Client.stock(node.endpoint) as third:
            third.post(DeviceCount())
            assert third.closed()
        attached = stack.enter_context(first.attach(node.endpoint))
        attached.ping()
        first.close()
        attached.close()
        wait_for("the first session to end", lambda: "ended after" in node.log())
        with Client.extended(node.endpoint) as fourth:
            fourth.ping()


def test_connections_of_a_session_have_a_limit_that_is_told(node):
    with Client.extended(node.endpoint) as client, ExitStack() as stack:
        for _ in range(63):
            stack.enter_context(client.attach(node.endpoint))
        with pytest.raises(RefusedError, match="has 64 connections already"):
            client.attach(node.endpoint)
        client.ping()


def test_an_attached_connection_shares_buffers_and_keeps_the_session(node):
    client = Client.extended(node.endpoint)
    tensor = client.alloc(64).vector(1, 16)
    client.write(tensor, floats(*range(16)))
    client.ping()
    with client.attach(node.endpoint) as attached:
        assert attached.greeting.session == client.greeting.session
        client.close()
        assert attached.read(tensor, 64) == floats(*range(16))


def test_a_peer_does_not_keep_a_session(node):
    client = Client.extended(node.endpoint)
    session = client.greeting.session

    def gone() -> bool:
        try:
            Client.extended(node.endpoint, Role.PEER, session=session).close()
        except RefusedError as error:
            return "no session with this id" in error.cause
        except NetworkError:
            pass  # handed to the session while it ended
        return False

    with Client.extended(node.endpoint, Role.PEER, session=session) as peer:
        client.close()
        assert peer.closed()
        wait_for("the session to be gone", gone)


def test_attaching_needs_id_and_secret(node):
    with Client.extended(node.endpoint) as client:
        known = client.greeting
        wrong = [(known.session, bytes(16)), (known.session ^ 1, known.secret)]
        for session, secret in wrong:
            with pytest.raises(RefusedError, match="no session with this id and secret"):
                Client.extended(node.endpoint, Role.ATTACH, session=session, secret=secret)


def test_peers_reach_no_stock_session_and_need_level_3(node):
    with Client.stock(node.endpoint) as stock, Client.extended(node.endpoint) as client:
        number = stock.alloc(64).handle >> 32
        with pytest.raises(RefusedError, match="that a peer may write to"):
            Client.extended(node.endpoint, Role.PEER, session=number)
        session = client.greeting.session
        with pytest.raises(RefusedError, match="a peer needs extension level 3"):
            Client.extended(node.endpoint, Role.PEER, session=session, level=2)


def test_unknown_roles_and_level_0_are_refused(node):
    for role, level in ((7, 3), (0, 0)):
        with Client.stock(node.endpoint) as client, pytest.raises(RefusedError):
            client.call(ExtHello(level, role))


STRANGERS = {
    "a browser": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "another command first": request_frame(Command.DEVICE_COUNT),
    "an older client": REQUEST_HEADER.pack(Command.HELLO, 0),
}


@pytest.mark.parametrize("first_words", STRANGERS.values(), ids=STRANGERS.keys())
def test_a_stranger_is_closed_and_the_log_says_why(node, first_words):
    with socket.create_connection(node.endpoint.split(":"), timeout=patience(5)) as stranger:
        stranger.sendall(first_words)
        assert is_closed(stranger)
    wait_for("the log", lambda: "not a client, closing" in node.log())
    with Client.extended(node.endpoint) as client:
        client.ping()


def test_a_client_may_send_hello_and_more_in_one_piece_or_byte_by_byte(node):
    words = request_frame(Command.HELLO, Hello().pack())
    words += request_frame(Command.EXT_HELLO, ExtHello(3, 0).pack())
    words += request_frame(Command.PING)
    for step in (len(words), 1):
        with Client(node.endpoint) as client:
            for start in range(0, len(words), step):
                client.stream.send([words[start : start + step]])
            assert Hello.Reply.unpack(client.reply()).major == 7
            assert client.reply()
            assert client.reply() == b"\x01"


def test_hello_has_one_deadline_and_silence_after_it_has_none():
    prelude = f"settings.HELLO_TIMEOUT = {patience(2)}"
    with raw_node(prelude=prelude) as process, ExitStack() as stack:
        endpoint = endpoint_of(read_banner(process))
        idle = stack.enter_context(Client.stock(endpoint))
        slow = stack.enter_context(Client(endpoint))
        with pytest.raises(NetworkError):
            trickle(slow, request_frame(Command.HELLO, Hello().pack()), pause=patience(0.1))
        late = stack.enter_context(Client.stock(endpoint))
        late.stream.send([request_frame(Command.EXT_HELLO, ExtHello(3, 0).pack())[:20]])
        assert late.closed()
        assert DeviceCount.Reply.unpack(idle.call(DeviceCount())).value == 1


def trickle(client: Client, words: bytes, pause: float) -> None:
    """Send byte by byte, and wait for the reply."""
    for byte in words:
        client.stream.send([bytes([byte])])
        time.sleep(pause)
    client.reply()


def test_a_message_that_has_begun_must_go_on():
    with raw_node(prelude="settings.BULK_TIMEOUT = 0.3") as process:
        endpoint = endpoint_of(read_banner(process))
        with Client.extended(endpoint) as client:
            time.sleep(0.5)
            client.ping()
            client.stream.send([request_frame(Command.GET_ALIGNMENT, bytes(4))[:-1]])
            assert client.closed()


def test_connections_that_never_say_hello_are_bounded():
    """Whoever comes then is let in: the one that waits longest makes room."""
    prelude = "import ringline.server.crowd as c, ringline.server.reception as r"
    prelude += "; c.MOST_HALF_OPEN = r.MOST_WAITING = 4"
    with raw_node(prelude=prelude) as process, ExitStack() as stack:
        endpoint = endpoint_of(read_banner(process))
        silent = [stack.enter_context(Client(endpoint)) for _ in range(4)]
        fifth = stack.enter_context(Client.stock(endpoint))
        assert silent[0].closed()
        waiting = [stack.enter_context(Client.stock(endpoint)) for _ in range(4)]
        assert fifth.closed()
        waiting[-1].call(DeviceCount())


def test_one_address_has_its_own_limit_and_pushes_no_other_out():
    prelude = "import ringline.server.crowd as c; c.MOST_HALF_OPEN_HERE = 3"
    prelude += "; c.MOST_HALF_OPEN = 5"
    with raw_node("--host=0.0.0.0", "--insecure", prelude=prelude) as process, ExitStack() as stack:
        port = int(endpoint_of(read_banner(process)).rpartition(":")[2])
        other = connect_from(stack, "127.0.0.2", port)
        crowd = [connect_from(stack, "127.0.0.1", port) for _ in range(8)]
        for silent in crowd[:5]:
            assert is_closed(silent)
        for words in (other, *crowd[5:]):
            words.sendall(request_frame(Command.HELLO, Hello().pack()))
            assert words.recv(1)


def connect_from(stack: ExitStack, host: str, port: int) -> socket.socket:
    """A connection to this machine from one of its many loopback addresses."""
    sock = socket.create_connection(("127.0.0.1", port), patience(10), source_address=(host, 0))
    return stack.enter_context(sock)


def foreign_descriptors(pid: int) -> list[str]:
    """What a session process holds beyond its control socket and its one connection."""
    try:
        links = [os.readlink(entry) for entry in Path(f"/proc/{pid}/fd").iterdir()]
    except FileNotFoundError:  # closed, or ended, while we looked
        return []
    sockets = [link for link in links if link.startswith("socket:")]
    return sockets[2:] + [link for link in links if "eventpoll" in link or "pidfd" in link]


def test_a_session_process_inherits_nothing_of_other_clients(node):
    with ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Client.extended(node.endpoint)).ping()
        stack.enter_context(Client.stock(node.endpoint))
        for pid in children(node.process.pid):
            wait_for(
                f"{pid} to let go of what is not its own",
                lambda pid=pid: not foreign_descriptors(pid),
            )
