"""A client's connection: queueing, order, error frames, deadlines, both ends writing at once."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from ringline.client.connection import BULK, Connection
from ringline.client.counters import Traffic
from ringline.errors import DeadlineError, NetworkError, ProtocolError, RefusedError
from ringline.net.stream import Stream
from ringline.wire.commands import Command
from ringline.wire.frames import error_frame, reply_frame, request_frame
from tests.peers.processes import patience

SECONDS = 60.0


class Pair:
    """A connection of ours and the raw socket of its node."""

    def __init__(self) -> None:
        ours, self.node = socket.socketpair()
        self.node.settimeout(patience(SECONDS))
        self.traffic = Traffic()
        self.stream = stream = Stream(ours, peer="node:1", silence=patience(SECONDS))
        self.connection = Connection(stream, traffic=self.traffic)
        self.connection.level = 3

    def receive(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            piece = self.node.recv(size - len(data))
            assert piece, f"the client closed after {len(data)} bytes"
            data += piece
        return bytes(data)


@pytest.fixture
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.connection.close()
    pair.node.close()


def test_commands_without_reply_wait_for_the_flush(pair):
    pair.connection.post(Command.FREE_BUFFER, struct.pack("<Q", 7))
    pair.node.setblocking(False)
    with pytest.raises(BlockingIOError):
        pair.node.recv(1)
    pair.node.settimeout(patience(SECONDS))
    pair.connection.flush()
    frame = request_frame(Command.FREE_BUFFER, struct.pack("<Q", 7))
    assert pair.receive(len(frame)) == frame


def test_a_queue_and_a_call_leave_in_one_piece_and_in_order(pair):
    pair.connection.post(Command.FREE_BUFFER, bytes(8))
    pair.node.sendall(reply_frame(b"\x01"))
    assert pair.connection.call(Command.PING, size=1) == b"\x01"
    frames = request_frame(Command.FREE_BUFFER, bytes(8)) + request_frame(Command.PING)
    assert pair.receive(len(frames)) == frames


def test_bulk_is_sent_before_post_returns(pair):
    body = bytearray(b"x" * BULK)
    pair.connection.post(Command.SET_TENSOR, bytes(305), body)
    body[:] = bytes(BULK)
    assert pair.receive(9 + 305 + BULK)[-BULK:] == b"x" * BULK


def test_replies_fill_their_targets_in_order(pair):
    first, second = bytearray(3), bytearray(200_000)
    pair.connection.expect(Command.GET_TENSOR, bytes(312), target=memoryview(first))
    pair.connection.expect(Command.GET_TENSOR, bytes(312), target=memoryview(second))
    answer = reply_frame(b"abc") + reply_frame(b"z" * len(second))
    sender = threading.Thread(target=pair.node.sendall, args=(answer,))
    sender.start()
    pair.connection.drain()
    sender.join()
    assert (first, second) == (b"abc", b"z" * len(second))


def test_a_command_is_on_its_way_until_a_later_reply(pair):
    connection = pair.connection
    assert not connection.dirty
    target = bytearray(1)
    connection.expect(Command.GET_TENSOR, bytes(312), target=memoryview(target))
    connection.post(Command.FREE_BUFFER, bytes(8))
    pair.node.sendall(reply_frame(b"a"))
    connection.drain()
    assert connection.dirty  # the read came back, what was sent after it may not be done
    pair.node.sendall(reply_frame(b"\x01"))
    connection.call(Command.PING, size=1)
    assert not connection.dirty


def test_an_error_frame_names_node_command_cause_and_what_was_sent(pair):
    pair.connection.post(Command.FREE_BUFFER, bytes(8))
    pair.connection.post(Command.FREE_BUFFER, bytes(8))
    pair.node.sendall(error_frame(4, "no such buffer"))
    with pytest.raises(RefusedError) as failure:
        pair.connection.call(Command.PING, size=1)
    assert str(failure.value) == (
        "node node:1: PING: no such buffer (sent since its last reply: FREE_BUFFER x2)"
    )
    assert failure.value.code == 4


def test_after_an_error_frame_the_connection_goes_on(pair):
    pair.node.sendall(error_frame(1, "no") + reply_frame(b"\x01"))
    with pytest.raises(RefusedError):
        pair.connection.call(Command.PING, size=1)
    assert pair.connection.call(Command.PING, size=1) == b"\x01"


def test_a_stock_servers_huge_reply_is_no_error_frame(pair):
    pair.connection.level = 0
    pair.node.sendall(struct.pack("<Q", 2**64 - 1))
    with pytest.raises(ProtocolError, match="18446744073709551615 bytes where 8 were expected"):
        pair.connection.call(Command.GET_MAX_SIZE, bytes(4), size=8)


def test_a_reply_of_the_wrong_size_breaks_the_connection_for_good(pair):
    pair.node.sendall(reply_frame(b"abc"))
    with pytest.raises(ProtocolError, match="a reply of 3 bytes where 1 were expected"):
        pair.connection.call(Command.PING, size=1)
    with pytest.raises(ProtocolError, match="a reply of 3 bytes"):
        pair.connection.post(Command.FREE_BUFFER, bytes(8))


def test_silence_ends_in_a_named_error(pair):
    pair.stream.silence = 0.5
    with pytest.raises(
        DeadlineError, match=r"node node:1: PING: nothing came for 0\.5 s"
    ) as failure:
        pair.connection.call(Command.PING, size=1)
    assert failure.value.seconds == 0.5


def test_a_closed_connection_says_what_was_on_its_way(pair):
    pair.connection.post(Command.GRAPH_RECOMPUTE, bytes(4))
    pair.node.close()
    with pytest.raises(NetworkError, match=r"node node:1: .*GRAPH_RECOMPUTE"):
        pair.connection.call(Command.PING, size=1)


def test_two_ends_that_both_write_do_not_block_each_other(pair):
    """The node reads nothing until it has got rid of a reply that is larger than all buffers."""
    size = 32 << 20
    target, body = bytearray(size), bytes(size)

    def node() -> None:
        pair.receive(9 + 312)
        pair.node.sendall(reply_frame(b"r" * size))
        pair.receive(9 + 305 + size)

    thread = threading.Thread(target=node)
    thread.start()
    pair.connection.expect(Command.GET_TENSOR, bytes(312), target=memoryview(target))
    pair.connection.post(Command.SET_TENSOR, bytes(305), body)
    pair.connection.drain()
    thread.join(patience(SECONDS))
    assert not thread.is_alive()
    assert target[0] == target[-1] == ord("r")


def test_an_error_frame_in_the_middle_of_a_send_leaves_the_message_whole(pair):
    size = 32 << 20
    whole = []

    def node() -> None:
        pair.receive(9)
        pair.node.sendall(error_frame(1, "late"))
        whole.append(len(pair.receive(9 + 305 + size)))

    thread = threading.Thread(target=node)
    thread.start()
    target = bytearray(8)
    pair.connection.expect(Command.PING, target=memoryview(target))
    pair.connection.flush()
    pair.connection.post(Command.SET_TENSOR, bytes(305), bytes(size))
    with pytest.raises(RefusedError, match="late"):
        pair.connection.drain()
    thread.join(patience(SECONDS))
    assert whole == [9 + 305 + size]


def test_traffic_counts_frames_in_both_directions(pair):
    pair.connection.post(Command.FREE_BUFFER, bytes(8))
    pair.node.sendall(reply_frame(b"\x01"))
    pair.connection.call(Command.PING, size=1)
    assert pair.traffic.commands == {"FREE_BUFFER": 1, "PING": 1}
    assert (pair.traffic.bytes_out, pair.traffic.bytes_in) == (17 + 9, 9)


def test_a_reply_to_another_thread_is_no_sign_that_the_node_has_gone(pair, monkeypatch):
    """It asks in the very moment in which we look, as the heartbeat and the observer do."""
    look = pair.stream.readable

    def ask() -> None:
        pair.connection.ask(Command.PING, target=memoryview(bytearray(1)))
        pair.connection.flush()
        pair.node.sendall(reply_frame(b"\x01"))

    thread = threading.Thread(target=ask)

    def late(seconds: float) -> bool:
        thread.start()
        thread.join(0.2)  # all this time if it has to wait for us
        return look(seconds)

    with monkeypatch.context() as patch:
        patch.setattr(pair.stream, "readable", late)
        assert pair.connection.alive()
    thread.join(patience(SECONDS))
