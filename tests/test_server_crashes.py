"""A session process that dies: who notices, what is counted, and who has to wait."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringline.errors import RefusedError
from ringline.server.board import Board
from ringline.server.crashes import Crashes
from ringline.server.limits import (
    CRASH_FORGIVEN,
    CRASH_LONGEST_PAUSE,
    MOST_CRASHERS,
    WARM_PROCESSES,
)
from ringline.server.origin import origin_of
from ringline.wire.commands import Command
from ringline.wire.extension import ExtHello, Role
from ringline.wire.frames import ERROR_HEADER, ERROR_SIZE, REPLY_HEADER, request_frame
from ringline.wire.messages import DeviceCount, Hello
from tests.peers.process_tree import watched
from tests.peers.processes import Peer, patience, ringline_node
from tests.rendezvous_sides import Side, new_ticket, receive, send
from tests.server_client import (
    Client,
    addition,
    children,
    floats,
    op,
    session_of,
    settle,
    wait_for,
)

HERE = "127.0.0.1"


@pytest.fixture
def node() -> Iterator[Peer]:
    with ringline_node("--device=CPU", "--threads=1") as node:
        yield node


# The count and the pause, without a process


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def crashes(clock: Clock) -> Crashes:
    return Crashes(1.0, clock=clock)


def crash(crashes: Crashes, origin: str = HERE, cause: str = "SIGSEGV") -> float:
    return crashes.note(origin, cause, "GRAPH_COMPUTE")


def test_the_first_crash_costs_nothing_and_each_further_one_twice_as_long(crashes):
    assert [crash(crashes) for _ in range(9)] == [0, 1, 2, 4, 8, 16, 32, CRASH_LONGEST_PAUSE, 60]


def test_who_has_to_wait_is_told_why_and_how_long(crashes, clock):
    crash(crashes)
    crashes.check(HERE)
    crash(crashes, cause="SIGABRT")
    clock.now += 0.25
    with pytest.raises(RefusedError) as refusal:
        crashes.check(HERE)
    assert str(refusal.value) == (
        "2 sessions from 127.0.0.1 have crashed lately, the last by SIGABRT in GRAPH_COMPUTE: "
        "the next one may begin in 0.8 s"
    )
    clock.now += 0.75
    crashes.check(HERE)


def test_no_other_address_waits(crashes):
    for _ in range(5):
        crash(crashes)
    crashes.check("127.0.0.2")
    assert crash(crashes, "127.0.0.2") == 0


def test_a_quiet_while_is_forgiven(crashes, clock):
    for _ in range(5):
        crash(crashes)
    clock.now += CRASH_FORGIVEN + 1
    crashes.check(HERE)
    assert crash(crashes) == 0
    assert crash(crashes) == 1


def test_a_slow_loop_is_not_forgiven(crashes, clock):
    for _ in range(20):
        pause = crash(crashes)
        clock.now += CRASH_FORGIVEN / 2
    assert pause == CRASH_LONGEST_PAUSE


def test_crashes_are_counted_in_all_by_cause_and_by_address(crashes):
    for _ in range(3):
        crash(crashes)
    crash(crashes, "::1", cause="SIGABRT")
    with pytest.raises(RefusedError):
        crashes.check(HERE)
    assert crashes.total == 4
    assert crashes.by_cause == {"SIGSEGV": 3, "SIGABRT": 1}
    assert crashes.by_origin() == {HERE: 3, "::1": 1}
    assert crashes.turned_away == 1


def test_the_addresses_that_are_remembered_are_bounded(crashes):
    crash(crashes)
    for number in range(MOST_CRASHERS):
        crash(crashes, f"origin {number}")
    assert len(crashes.by_origin()) == MOST_CRASHERS
    assert HERE not in crashes.by_origin()
    assert crashes.total == MOST_CRASHERS + 1


def test_without_a_pause_nobody_waits(clock):
    crashes = Crashes(0.0, clock=clock)
    assert {crash(crashes) for _ in range(20)} == {0}
    crashes.check(HERE)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("10.0.0.1", "10.0.0.2", False),
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("fe80::1%eth0", "fe80::2%eth1", True),
    ],
)
def test_what_counts_as_one_address(one, other, same):
    assert (origin_of(one) == origin_of(other)) is same


def test_a_board_says_what_was_under_way_and_else_what_was_last():
    board = Board()
    assert board.doing() == "none"
    board.begin(1, Command.RECV_TENSOR)
    board.begin(2, Command.GRAPH_COMPUTE)
    board.begin(3, Command.PING)
    board.done(3)
    assert board.doing() == "GRAPH_COMPUTE, RECV_TENSOR"
    board.done(1)
    board.done(2)
    assert board.doing() == "PING"
    board.begin(10**6, 200)
    assert board.doing() == "none"


# Real nodes


@contextmanager
def greeted(endpoint: str, source: str) -> Iterator[bytes | None]:
    """A client from a loopback address of its own: the error that it got, None for none."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), patience(10), (source, 0)) as sock:
        file = sock.makefile("rb")
        sock.sendall(request_frame(Command.HELLO, Hello().pack()))
        file.read(*REPLY_HEADER.unpack(file.read(REPLY_HEADER.size)))
        sock.sendall(request_frame(Command.EXT_HELLO, ExtHello(3, Role.CLIENT).pack()))
        (size,) = REPLY_HEADER.unpack(file.read(REPLY_HEADER.size))
        error = None
        if size == ERROR_SIZE:
            _, length = ERROR_HEADER.unpack(file.read(ERROR_HEADER.size))
            error = file.read(length)
        yield error
        file.close()


def kill_a_session(node: Peer, number: signal.Signals = signal.SIGSEGV) -> None:
    ended = node.log().count(f"was killed by {number.name}")
    with session_of(node) as (client, pid):
        client.ping()
        os.kill(pid, number)
        assert client.closed()
    wait_for("the log", lambda: node.log().count(f"was killed by {number.name}") > ended)


def test_a_crash_loop_of_one_address_is_slowed_down_and_of_no_other():
    with ringline_node("--threads=1", "--crash-pause=3600") as node, ExitStack() as stack:
        living = stack.enter_context(Client.extended(node.endpoint))
        for _ in range(2):
            kill_a_session(node)
        with pytest.raises(RefusedError, match=r"2 sessions from 127\.0\.0\.1 have crashed"):
            Client.extended(node.endpoint)
        with Client.stock(node.endpoint) as stock:
            stock.post(DeviceCount())
            assert stock.closed()
        living.ping()
        living.attach(node.endpoint).close()
        with greeted(node.endpoint, "127.0.0.2") as error:
            assert error is None
        with greeted(node.endpoint, HERE) as error:
            assert error is not None
            assert b"the next one may begin in" in error
        assert "turned away: 2 sessions from 127.0.0.1 have crashed" in node.log()


def test_a_pause_ends():
    with ringline_node("--threads=1", "--crash-pause=0.3") as node:
        for _ in range(2):
            kill_a_session(node, signal.SIGABRT)

        def served() -> bool:
            with greeted(node.endpoint, HERE) as error:
                return error is None

        wait_for("the pause to end", served)


def test_a_session_that_its_operator_ended_is_no_crash():
    with ringline_node("--threads=1", "--crash-pause=3600") as node:
        for _ in range(3):
            kill_a_session(node, signal.SIGTERM)


def test_what_kills_a_session_is_named_even_where_another_connection_spoke_last(node):
    """GRAPH_COMPUTE dies of an index in its data after another connection has sent a PING."""
    with Client.extended(node.endpoint) as client, Client.extended(node.endpoint) as other:
        block, safe = client.alloc(4096), other.alloc(4096)
        rows = replace(block.vector(2, 1, at=64), type=26)
        picked = block.vector(3, 8, at=128, op=op("GET_ROWS"), src=(1, 2, *(0,) * 8))
        client.write(rows, np.array([-7], np.int32).tobytes())
        with client.attach(node.endpoint) as lane:
            lane.ping()
            client.compute([3], [block.vector(1, 8), rows, picked])
            assert lane.closed()
        wait_for("the log", lambda: "its last command was GRAPH_COMPUTE" in node.log())
        assert_computes(other, addition(safe))


def assert_computes(client: Client, tensors: list) -> None:
    left, right, total = tensors
    client.write(left, floats(*range(8)))
    client.write(right, floats(*[10] * 8))
    client.compute([3], tensors)
    assert client.read(total, 32) == floats(*range(10, 18))


def test_a_session_that_dies_in_its_turn_gives_the_device_to_the_next(node):
    """Killed in the middle of a product that holds the device for long."""
    n = 2048
    whole = 4 * n * n
    with Client.extended(node.endpoint) as other, session_of(node) as (client, pid):
        block = client.alloc(3 * whole)
        square = {"ne": (n, n, 1, 1), "nb": (4, 4 * n, whole, whole)}
        tensors = [replace(block.vector(i, 1, at=(i - 1) * whole), **square) for i in (1, 2, 3)]
        tensors[2] = replace(tensors[2], op=op("MUL_MAT"), src=(1, 2, *(0,) * 8))
        client.ping()
        client.compute([3], tensors)
        for _ in range(200):
            client.recompute()
        wait_for("the device to be busy", lambda: computes(pid))
        os.kill(pid, signal.SIGKILL)
        assert_computes(other, addition(other.alloc(4096)))
        wait_for("the log", lambda: "was killed by SIGKILL" in node.log())


def computes(pid: int) -> bool:
    """Whether a process holds a lock of the kernel's, and so is in its turn."""
    lines = Path("/proc/locks").read_text().splitlines()
    return any(f" {pid} " in line and "WRITE" in line for line in lines)


SIZE = 64 << 20


class Bulk(Side):
    """A side with a tensor that no socket's buffers hold."""

    def __init__(self, node: Peer) -> None:
        super().__init__(node)
        self.tensor = self.client.alloc(SIZE).vector(1, SIZE // 4)


def transfer(source: Side, target: Side, size: int) -> bytes:
    """SEND_TENSOR and RECV_TENSOR, which nobody waits for; the ticket."""
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket, size=size)
    send(source, ticket, target, size=size)
    return ticket


def unread(node: Peer) -> int:
    """Bytes that wait in the kernel for a node's sessions to read them."""
    port = f":{int(node.endpoint.rpartition(':')[2]):04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return sum(int(f[4].partition(":")[2], 16) for f in fields if f[1].endswith(port))


def pid_of(side: Side) -> int:
    begins = f"session {side.session:08x} begins"
    (line,) = [line for line in side.node.log().splitlines() if begins in line]
    return int(line.rpartition("pid ")[2])


@pytest.mark.parametrize("victim", ["source", "target"])
def test_a_session_that_dies_in_the_middle_of_a_transfer_costs_the_other_end_an_error(victim):
    """The target is frozen with the first bytes of the data, then one of the two is killed."""
    with ringline_node("--threads=1") as a, ringline_node("--threads=1") as b, ExitStack() as stack:
        source, target = Bulk(a), Bulk(b)
        bystanders = [Client.extended(node.endpoint) for node in (a, b)]
        for client in (source.client, target.client, *bystanders):
            stack.enter_context(client)
        for side in (source, target):
            side.client.ping()
        transfer(source, target, 64)
        assert target.client.read(target.tensor, 64) == bytes(64)
        os.kill(pid_of(target), signal.SIGSTOP)
        ticket = transfer(source, target, SIZE)
        wait_for("data on their way", lambda: unread(b) > 1 << 16)
        killed, other = (source, target) if victim == "source" else (target, source)
        os.kill(pid_of(killed), signal.SIGKILL)
        if victim == "source":
            os.kill(pid_of(target), signal.SIGCONT)
        assert killed.client.closed()
        wait_for("the log", lambda: "was killed by SIGKILL" in killed.node.log())
        if victim == "target":
            wait_for("the report", lambda: ticket.hex() in a.log())
        with pytest.raises(RefusedError, match=ticket.hex()):
            other.client.ping()
        other.client.ping()
        for client in bystanders:
            assert_computes(client, addition(client.alloc(4096)))


def test_a_connection_that_is_handed_to_a_process_that_dies_is_closed_and_no_other(node):
    """It waits in the socket between the two processes when the session is killed."""
    with Client.extended(node.endpoint) as other, session_of(node) as (client, pid):
        client.ping()
        os.kill(pid, signal.SIGSTOP)
        lane = Client.stock(node.endpoint)
        known = client.greeting
        lane.post(ExtHello(3, Role.ATTACH, session=known.session, secret=known.secret))
        wait_for("the handover", lambda: "joins as attach" in node.log())
        os.kill(pid, signal.SIGKILL)
        with lane:
            assert lane.closed()
        wait_for("the log", lambda: "was killed by SIGKILL" in node.log())
        other.ping()
        with Client.extended(node.endpoint) as third:
            third.ping()


def test_idle_processes_that_die_cost_no_client_anything(node):
    with Client.extended(node.endpoint) as client:
        client.ping()
        settle(node)
        busy = next(line for line in node.log().splitlines() if "begins" in line)
        gatekeeper = node.process.pid
        wait_for("the next ones", lambda: len(children(gatekeeper)) == 1 + WARM_PROCESSES)
        idle = children(gatekeeper) - {int(busy.rpartition("pid ")[2])}
        assert len(idle) == WARM_PROCESSES
        with watched(sorted(idle)) as processes:
            for pid in idle:
                os.kill(pid, signal.SIGKILL)
            assert all(process.wait_gone(10) for process in processes)
        for _ in range(3):
            with Client.extended(node.endpoint) as other:
                other.ping()
        client.ping()
    wait_for("the log", lambda: node.log().count("an idle session process") == len(idle))
