"""COPY_TENSOR_TO: straight from node to node, and every way in which that does not work."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from ringline.wire.extension import CopyTensorTo
from ringline.wire.frames import error_frame, reply_frame
from ringline.wire.messages import FreeBuffer, Hello
from ringline.wire.tensor import Tensor
from tests.peers.dead_ends import refusing_endpoint
from tests.peers.forwarder import forwarder
from tests.peers.processes import Peer, ringline_node
from tests.server_client import Client, floats, session_of, settle, wait_for


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Peer, Peer]]:
    with ringline_node("--threads=1") as source, ringline_node("--threads=1") as destination:
        yield source, destination


@pytest.fixture
def source(nodes: tuple[Peer, Peer]) -> Iterator[Client]:
    with Client.extended(nodes[0].endpoint) as client:
        yield client


@pytest.fixture
def destination(nodes: tuple[Peer, Peer]) -> Iterator[Client]:
    with Client.extended(nodes[1].endpoint) as client:
        yield client


def copy(client: Client, src: Tensor, dst: Tensor, size: int, endpoint: str) -> int:
    request = CopyTensorTo(src.pack(), dst.pack(), size, endpoint)
    return CopyTensorTo.Reply.unpack(client.call(request)).value


def peers_that_joined(node: Peer, client: Client) -> int:
    """How many connections of other nodes the client's session has had so far."""
    settle(node)
    of_it = f"session {client.greeting.session:08x}: "
    lines = [line for line in node.log().splitlines() if line.endswith(" joins as peer")]
    return sum(of_it in line for line in lines)


def test_a_tensor_goes_straight_to_the_other_node(nodes, source, destination):
    src, dst = source.alloc(64).vector(1, 16), destination.alloc(64).vector(2, 16)
    source.write(src, floats(*range(16)))
    assert copy(source, src, dst, 64, nodes[1].endpoint) == 1
    assert destination.read(dst, 64) == floats(*range(16))


def test_only_the_asked_part_is_sent(nodes, source, destination):
    src, dst = source.alloc(64).vector(1, 16), destination.alloc(64).vector(2, 16)
    source.write(src, b"\x01" * 64)
    destination.write(dst, b"\x02" * 64)
    assert copy(source, src, dst, 20, nodes[1].endpoint) == 1
    assert destination.read(dst, 64) == b"\x01" * 20 + b"\x02" * 44


def test_bulk_goes_through(nodes, source, destination):
    n = 4 << 20
    src, dst = source.alloc(4 * n).vector(1, n), destination.alloc(4 * n).vector(2, n)
    data = np.random.default_rng(4).bytes(4 * n)
    source.write(src, data)
    assert copy(source, src, dst, 4 * n, nodes[1].endpoint) == 1
    assert destination.read(dst, 4 * n) == data


def test_a_connection_to_a_peer_is_kept_for_the_next_transfer(nodes, source, destination):
    src, dst = source.alloc(64).vector(1, 16), destination.alloc(64).vector(2, 16)
    for _ in range(5):
        assert copy(source, src, dst, 64, nodes[1].endpoint) == 1
    assert peers_that_joined(nodes[1], destination) == 1


def test_two_sessions_of_one_node_have_connections_of_their_own(nodes, source, destination):
    with Client.extended(nodes[1].endpoint) as other:
        src = source.alloc(64).vector(1, 16)
        targets = [(client, client.alloc(64).vector(2, 16)) for client in (destination, other)]
        for value, (client, dst) in enumerate(targets):
            source.write(src, floats(*[value] * 16))
            assert copy(source, src, dst, 64, nodes[1].endpoint) == 1
            assert client.read(dst, 64) == floats(*[value] * 16)


def test_a_node_can_send_to_another_session_of_its_own(nodes, source):
    with Client.extended(nodes[0].endpoint) as other:
        src, dst = source.alloc(64).vector(1, 16), other.alloc(64).vector(2, 16)
        source.write(src, floats(*range(16)))
        assert copy(source, src, dst, 64, nodes[0].endpoint) == 1
        assert other.read(dst, 64) == floats(*range(16))


def test_two_nodes_can_push_at_each_other(nodes, source, destination):
    n = 1 << 20
    one, two = source.alloc(8 * n), destination.alloc(8 * n)
    results: list[int] = []

    def push(client: Client, mine: Tensor, theirs: Tensor, endpoint: str) -> None:
        results.extend(copy(client, mine, theirs, 4 * n, endpoint) for _ in range(10))

    threads = [
        threading.Thread(target=push, args=arguments)
        for arguments in (
            (source, one.vector(1, n), two.vector(2, n, at=4 * n), nodes[1].endpoint),
            (destination, two.vector(1, n), one.vector(2, n, at=4 * n), nodes[0].endpoint),
        )
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [1] * 20


def test_what_the_destination_refuses_is_answered_0_and_harms_nobody(nodes, source, destination):
    src, block = source.alloc(64).vector(1, 16), destination.alloc(64)
    small, good = block.vector(2, 8), block.vector(3, 16)
    assert copy(source, src, small, 64, nodes[1].endpoint) == 0
    assert copy(source, src, good, 64, nodes[1].endpoint) == 1
    destination.post(FreeBuffer(block.handle))
    destination.ping()
    assert copy(source, src, good, 64, nodes[1].endpoint) == 0
    source.ping()
    destination.ping()


def test_the_log_of_the_source_says_why_it_did_not_work(nodes, source, destination):
    src, dst = source.alloc(64).vector(1, 16), destination.alloc(64).vector(2, 8)
    assert copy(source, src, dst, 64, nodes[1].endpoint) == 0
    lines = [line for line in nodes[0].log().splitlines() if "no transfer to" in line]
    assert nodes[1].endpoint in lines[-1]
    assert "are outside its 32 bytes" in lines[-1]


def test_a_session_that_is_gone_is_answered_0(nodes, source):
    src = source.alloc(64).vector(1, 16)
    with session_of(nodes[1]) as (gone, pid):
        dst = gone.alloc(64).vector(2, 16)
        assert copy(source, src, dst, 64, nodes[1].endpoint) == 1
    # Until its process has ended the session takes what comes, which is as good.
    wait_for("the session's end", lambda: not Path(f"/proc/{pid}").exists())
    assert copy(source, src, dst, 64, nodes[1].endpoint) == 0
    source.ping()


def test_a_destination_that_cannot_be_reached_is_answered_0(source):
    src = source.alloc(64).vector(1, 16)
    with refusing_endpoint() as endpoint:
        assert copy(source, src, src, 64, endpoint) == 0
    for nonsense in ("", "no-port:", "[::1", "127.0.0.1:0", "127.0.0.1:99999999"):
        assert copy(source, src, src, 64, nonsense) == 0
    source.ping()


def test_an_address_that_the_operator_does_not_allow_is_never_dialled():
    with (
        ringline_node("--allow-peer=10.0.0.0/8") as node,
        Client.extended(node.endpoint) as client,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        listener.settimeout(0.2)
        src = client.alloc(64).vector(1, 16)
        assert copy(client, src, src, 64, f"127.0.0.1:{listener.getsockname()[1]}") == 0
        assert "may not dial that address" in node.log()
        with pytest.raises(TimeoutError):
            listener.accept()


@contextmanager
def impostor(*answers: bytes) -> Iterator[str]:
    """A destination that gives prepared answers, one for each thing that it is sent."""

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, suppress(ConnectionError):
            for reply in answers:
                if not connection.recv(65536):
                    return
                connection.sendall(reply)
            connection.recv(65536)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


def hello(level: int, major: int = 7) -> bytes:
    return reply_frame(Hello.Reply(major, 0, 0, level).pack())


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        ([hello(0)], "its extension level is 0, a transfer needs 3"),
        ([hello(2)], "its extension level is 2, a transfer needs 3"),
        ([hello(3, major=6)], "it speaks ggml RPC 6.0.0, not 7.0.0"),
        ([reply_frame(bytes(1000))], "a reply of 1000 bytes makes no sense"),
        ([hello(3), error_frame(1, "go away")], "go away"),
        ([hello(3), reply_frame(bytes(100_000))], "a reply of 100000 bytes makes no sense"),
        ([hello(3), reply_frame(bytes(10))], "an EXT_HELLO reply of 10 bytes is too short"),
    ],
    ids=["stock", "too old", "other version", "nonsense", "refusing", "endless", "cut short"],
)
def test_a_destination_that_cannot_take_it_is_answered_0(nodes, source, answers, reason):
    src = source.alloc(64).vector(1, 16)
    with impostor(*answers) as endpoint:
        assert copy(source, src, src, 64, endpoint) == 0
    assert reason in nodes[0].log()
    source.ping()


def test_a_destination_that_was_restarted_is_found_again(nodes, source):
    src = source.alloc(64).vector(1, 16)
    source.write(src, floats(*range(16)))
    with ExitStack() as stack:
        node = stack.enter_context(ringline_node())
        with Client.extended(node.endpoint) as client:
            dst = client.alloc(64).vector(2, 16)
            assert copy(source, src, dst, 64, node.endpoint) == 1
        node.stop()
        assert copy(source, src, dst, 64, node.endpoint) == 0
        port = int(node.endpoint.rpartition(":")[2])
        again = stack.enter_context(ringline_node(port=port))
        with Client.extended(again.endpoint) as client:
            dst = client.alloc(64).vector(2, 16)
            assert copy(source, src, dst, 64, again.endpoint) == 1
            assert client.read(dst, 64) == floats(*range(16))


def test_a_kept_connection_that_died_is_replaced_within_the_transfer(nodes, source, destination):
    """The destination's session goes on; only the peer's connection is cut, as a router might."""
    src, dst = source.alloc(64).vector(1, 16), destination.alloc(64).vector(2, 16)
    with forwarder(nodes[1].endpoint) as way:
        assert copy(source, src, dst, 64, way.endpoint) == 1
        for end in way._sockets:
            with suppress(OSError):  # its other half has closed it already
                end.shutdown(socket.SHUT_RDWR)
        source.write(src, floats(*[9] * 16))
        assert copy(source, src, dst, 64, way.endpoint) == 1
        assert way.accepted == 2
    assert destination.read(dst, 64) == floats(*[9] * 16)
