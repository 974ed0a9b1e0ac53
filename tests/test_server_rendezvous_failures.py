"""Level 4 on real nodes: every way in which SEND and RECV do not meet, and who is told."""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ringline.errors import RefusedError
from ringline.wire.commands import Command
from ringline.wire.extension import PeerData, ProbePeer, Role, SendTensor
from ringline.wire.frames import REQUEST_HEADER, ErrorCode
from ringline.wire.tensor import Tensor
from tests.peers.dead_ends import deaf_endpoint, refusing_endpoint
from tests.peers.forwarder import forwarder
from tests.peers.process_tree import descendants, watched
from tests.peers.processes import Peer, patience, ringline_node
from tests.raw_nodes import endpoint_of, raw_node, read_banner
from tests.rendezvous_sides import (
    NEW,
    OLD,
    Side,
    assert_transfer_failed,
    deliver,
    new_ticket,
    probe,
    receive,
    send,
)
from tests.server_client import Client, wait_for


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Peer, Peer]]:
    with ringline_node("--threads=1") as source, ringline_node("--threads=1") as target:
        yield source, target


@pytest.fixture
def source(nodes) -> Iterator[Side]:
    side = Side(nodes[0])
    with side.client:
        side.client.write(side.tensor, NEW)
        yield side


@pytest.fixture
def target(nodes) -> Iterator[Side]:
    side = Side(nodes[1])
    with side.client:
        side.client.write(side.tensor, OLD)
        yield side


def test_a_deadline_ends_in_an_error_and_what_follows_is_dropped(target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket, seconds=0.05)
    target.client.write(target.tensor, NEW)
    assert_transfer_failed(target.client, "RECV_TENSOR: .*no data within", ticket)
    assert target.client.read(target.tensor, 64) == OLD
    target.client.write(target.tensor, NEW)
    assert target.client.read(target.tensor, 64) == NEW


def test_data_that_break_off_are_named_at_once(target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket)
    with target.joined(Role.PEER) as peer:
        header = REQUEST_HEADER.pack(Command.PEER_DATA, PeerData.LAYOUT.size + 64)
        peer.stream.send([header, PeerData(ticket, 64).pack(), NEW[:32]])
    assert_transfer_failed(target.client, "broke off", ticket)


def test_data_of_another_size_are_refused(source, target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket, size=60)
    send(source, ticket, target)
    assert_transfer_failed(target.client, "64 bytes came where 60 were expected", ticket)
    assert target.client.read(target.tensor, 64) == OLD


def test_a_size_that_contradicts_its_frame_ends_the_peers_connection(target):
    with target.joined(Role.PEER) as peer:
        peer.send(Command.PEER_DATA, PeerData(new_ticket(), 1 << 60).pack(), NEW)
        with pytest.raises(RefusedError, match="are announced, 64 come"):
            peer.reply()
    target.client.ping()


@pytest.mark.parametrize(("offset", "size"), [(0, 65), (64, 1), (1 << 63, 1), (60, 1 << 63)])
def test_out_of_bounds_is_refused_on_both_sides(offset, size, source, target):
    send(source, new_ticket(), target, offset=offset, size=size)
    receive(target.client, target.tensor, new_ticket(), offset=offset, size=size)
    for side in (source, target):
        with pytest.raises(RefusedError, match="are outside its 64 bytes") as failure:
            side.client.ping()
        assert failure.value.code == ErrorCode.REFUSED
        side.client.ping()


def test_a_buffer_that_is_not_there_is_refused_on_both_sides(source, target):
    nowhere = struct.pack("<Q", 77)
    raw = bytearray(source.tensor.pack())
    raw[12:20] = nowhere
    tensor = Tensor.unpack(bytes(raw))
    send(source, new_ticket(), target, tensor=tensor)
    receive(target.client, tensor, new_ticket())
    for side in (source, target):
        with pytest.raises(RefusedError, match="no buffer 0x4d"):
            side.client.ping()


def test_what_cannot_be_sent_is_told_once_by_the_next_reply(source, target):
    tickets = [new_ticket() for _ in range(8)]
    with refusing_endpoint() as endpoint:
        for ticket in tickets:
            send(source, ticket, target, endpoint=endpoint)
        reported = [f"cannot send ticket {ticket.hex()}" for ticket in tickets]
        log = source.node.log
        wait_for("the reports", lambda: all(words in log() for words in reported))
    assert_transfer_failed(source.client, endpoint, *tickets)
    source.client.ping()


def test_what_fails_after_the_client_was_told_is_not_told_again(source, target):
    """The second is still being tried when the first error goes out: both are of one step."""
    first, second = new_ticket(), new_ticket()
    with deaf_endpoint() as deaf, refusing_endpoint() as refusing:
        send(source, second, target, endpoint=deaf)
        send(source, first, target, endpoint=refusing)
        log = source.node.log
        wait_for("the first report", lambda: f"cannot send ticket {first.hex()}" in log())
        assert_transfer_failed(source.client, "cannot send", first)
    wait_for("the second report", lambda: f"cannot send ticket {second.hex()}" in log(), 60)
    source.client.ping()


def test_an_error_of_one_lane_is_not_told_to_another(source, target):
    ticket = new_ticket()
    with source.joined(Role.ATTACH) as lane, refusing_endpoint() as endpoint:
        send(source, ticket, target, endpoint=endpoint)
        log = source.node.log
        wait_for("the report", lambda: f"cannot send ticket {ticket.hex()}" in log())
        lane.ping()
        assert_transfer_failed(source.client, "cannot send", ticket)


def test_where_a_node_may_not_dial_nothing_is_sent(target):
    with ringline_node("--allow-peer=192.0.2.0/24") as node:
        side = Side(node)
        with side.client:
            ticket = new_ticket()
            send(side, ticket, target)
            wait_for("the report", lambda: f"cannot send ticket {ticket.hex()}" in node.log())
            assert_transfer_failed(side.client, "may not dial", ticket)
            assert probe(side, target.node.endpoint, target.session).result == 0


def test_a_session_that_is_gone_is_told(source, target):
    gone, ticket = Side(target.node), new_ticket()
    gone.client.close()
    ends = f"session {gone.session:08x} of "
    wait_for("its end", lambda: ends in target.node.log())
    send(source, ticket, gone)
    log = source.node.log
    wait_for("the report", lambda: f"cannot send ticket {ticket.hex()}" in log())
    assert_transfer_failed(source.client, "cannot send", ticket)


def test_a_connection_that_was_cut_is_replaced(source, target):
    with forwarder(target.node.endpoint) as way:
        for accepted in (1, 2):
            ticket = new_ticket()
            send(source, ticket, target, endpoint=way.endpoint)
            receive(target.client, target.tensor, ticket)
            assert target.client.read(target.tensor, 64) == NEW
            assert way.accepted == accepted
            way.cut(0)


def test_a_probe_measures_a_way_that_works(source, target):
    reply = probe(source, target.node.endpoint, target.session, 1 << 20)
    assert reply.result == 1
    assert reply.round_trip_ns > 0
    assert reply.bytes_per_second > 0
    assert target.client.read(target.tensor, 64) == OLD


def test_a_probe_says_no_where_nothing_gets_through(source, target):
    no = ProbePeer.Reply(0, 0, 0)
    with refusing_endpoint() as endpoint:
        assert probe(source, endpoint, target.session) == no
    assert probe(source, target.node.endpoint, target.session ^ 1) == no
    for nonsense in ("", "no-port:", "127.0.0.1:0"):
        assert probe(source, nonsense, target.session) == no
    source.client.ping()


def test_a_probe_says_no_to_a_node_that_is_deaf(source, target):
    with deaf_endpoint() as endpoint, patient(source.client, 30):
        assert probe(source, endpoint, target.session).result == 0


def assert_cannot_send(source: Side, target: Side) -> None:
    ticket = new_ticket()
    send(source, ticket, target)
    wait_for("the report", lambda: f"cannot send ticket {ticket.hex()}" in source.node.log())
    assert_transfer_failed(source.client, "cannot connect", ticket)


def test_a_target_that_was_restarted_on_its_port_is_sent_to_again(source):
    """The connection to the old one is kept, by the same endpoint, and has died meanwhile."""
    port = 0
    for _ in range(2):
        with ringline_node("--threads=1", port=port) as node:
            port = int(node.endpoint.rpartition(":")[2])
            target = Side(node)
            with target.client:
                for _ in range(2):
                    ticket = new_ticket()
                    send(source, ticket, target)
                    receive(target.client, target.tensor, ticket)
                    assert target.client.read(target.tensor, 64) == NEW
                stale = target
                pids = descendants(node.process.pid)
            with watched(pids) as processes:
                node.kill()
                # Until its process has ended the session takes what comes, which is as good.
                assert all(process.wait_gone(10) for process in processes)
        assert_cannot_send(source, stale)


def test_destinations_that_are_gone_make_room_for_new_ones():
    """A source that lives long sees many sessions of the others: it may not run out of them."""
    prelude = "import ringline.server.senders as senders; senders.MOST_LINKS = 2"
    with raw_node("--threads=1", prelude=prelude) as process, ringline_node() as node:
        source = Client.extended(endpoint_of(read_banner(process)), level=4)
        with source:
            tensor = source.alloc(64).vector(1, 16)
            source.write(tensor, NEW)
            for _ in range(5):
                target = Side(node)
                with target.client:
                    ticket = new_ticket()
                    where = node.endpoint
                    source.post(SendTensor(tensor.pack(), 0, 64, ticket, target.session, where))
                    receive(target.client, target.tensor, ticket)
                    assert target.client.read(target.tensor, 64) == NEW
            source.ping()


def test_data_for_a_destination_that_takes_none_are_bounded_and_the_session_goes_on():
    """Snapshots wait for a deaf node up to a limit; then a send waits, and is refused at last."""
    prelude = (
        "import ringline.server.senders as senders\n"
        "senders.MOST_QUEUED, senders._ROOM_TIMEOUT = 100, 0.5"
    )
    with (
        raw_node("--threads=1", prelude=prelude) as process,
        deaf_endpoint() as deaf,
        Client.extended(endpoint_of(read_banner(process)), level=4) as source,
    ):
        tensor = source.alloc(64).vector(1, 16)
        source.write(tensor, NEW)

        def post() -> None:
            source.post(SendTensor(tensor.pack(), 0, 64, new_ticket(), 1, deaf))

        post()
        post()
        source.ping()  # 128 bytes wait: from now on there is no room
        post()
        with pytest.raises(RefusedError, match=r"no data for 0.5 s, 128 bytes wait for it"):
            source.ping()
        assert source.read(tensor, 64) == NEW


def test_data_for_all_destinations_together_are_bounded():
    prelude = "import ringline.server.senders as senders; senders.MOST_QUEUED_IN_ALL = 100"
    with (
        raw_node("--threads=1", prelude=prelude) as process,
        deaf_endpoint() as one,
        deaf_endpoint() as other,
        Client.extended(endpoint_of(read_banner(process)), level=4) as source,
    ):
        tensor = source.alloc(64).vector(1, 16)
        for endpoint in (one, other):
            source.post(SendTensor(tensor.pack(), 0, 64, new_ticket(), 1, endpoint))
        source.ping()
        source.post(SendTensor(tensor.pack(), 0, 64, new_ticket(), 1, one))
        with pytest.raises(
            RefusedError, match="128 bytes of this session wait to be sent, 100 may"
        ):
            source.ping()


@contextmanager
def patient(client: Client, seconds: float) -> Iterator[None]:
    silence, client.stream.silence = client.stream.silence, patience(seconds)
    yield
    client.stream.silence = silence


@pytest.mark.parametrize("ending", ["closes", "resets"])
def test_a_client_that_leaves_a_waiting_recv_ends_its_session(ending, nodes):
    side = Side(nodes[1])
    begins = f"session {side.session:08x} begins"
    wait_for("the session in the log", lambda: begins in nodes[1].log())
    (line,) = [line for line in nodes[1].log().splitlines() if begins in line]
    with watched([int(line.rpartition("pid ")[2])]) as processes:
        receive(side.client, side.tensor, new_ticket(), seconds=600)
        side.client.recompute()
        if ending == "resets":
            option = struct.pack("ii", 1, 0)
            sock = side.client.stream._socket
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
        side.client.close()
        assert processes[0].wait_gone(20)


def test_a_peer_that_goes_on_sending_does_not_keep_a_session(nodes):
    side = Side(nodes[1])
    wait_for("the session", lambda: f"session {side.session:08x} begins" in nodes[1].log())
    with side.joined(Role.PEER) as peer:
        deliver(peer, new_ticket())
        side.client.close()
        with contextlib.suppress(RefusedError):
            assert peer.closed()
