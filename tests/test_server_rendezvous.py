"""Level 4 on real nodes: SEND meets RECV by ticket, whoever is first; who may take part."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from ringline.errors import RefusedError
from ringline.wire.commands import Command
from ringline.wire.extension import PeerData, ProbePeer, RecvTensor, Role, SendTensor
from tests.peers.processes import Peer, ringline_node
from tests.rendezvous_sides import (
    NEW,
    OLD,
    Side,
    assert_transfer_failed,
    deliver,
    new_ticket,
    receive,
    send,
)
from tests.server_client import Client, addition, floats


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


def test_a_tensor_arrives_whoever_is_first(source, target):
    for command_first in (True, False, True):
        ticket = new_ticket()
        target.client.write(target.tensor, OLD)
        if command_first:
            receive(target.client, target.tensor, ticket)
        send(source, ticket, target)
        source.client.ping()
        if not command_first:
            receive(target.client, target.tensor, ticket)
        assert target.client.read(target.tensor, 64) == NEW


def test_data_that_are_certainly_first_arrive_too(target):
    ticket = new_ticket()
    with target.joined(Role.PEER) as peer:
        deliver(peer, ticket)
        peer.barrier()
    assert target.client.read(target.tensor, 64) == OLD
    receive(target.client, target.tensor, ticket)
    assert target.client.read(target.tensor, 64) == NEW


def test_a_part_of_a_tensor_goes_to_a_part_of_another(source, target):
    ticket = new_ticket()
    send(source, ticket, target, offset=4, size=8)
    receive(target.client, target.tensor, ticket, offset=40, size=8)
    assert target.client.read(target.tensor, 64) == OLD[:40] + NEW[4:12] + OLD[48:]


def test_bulk_goes_through(source, target):
    n = 4 << 20
    big = [side.client.alloc(4 * n).vector(2, n) for side in (source, target)]
    data, ticket = np.random.default_rng(7).bytes(4 * n), new_ticket()
    source.client.write(big[0], data)
    send(source, ticket, target, tensor=big[0], size=4 * n)
    receive(target.client, big[1], ticket, size=4 * n)
    assert target.client.read(big[1], 4 * n) == data


def test_the_bytes_are_those_of_their_moment_in_the_stream(source, target):
    """What comes after SEND may overwrite the tensor; what comes before RECV has been done."""
    tickets = [new_ticket() for _ in range(20)]
    for value, ticket in enumerate(tickets):
        source.client.write(source.tensor, floats(*[value] * 16))
        send(source, ticket, target)
    source.client.write(source.tensor, OLD)
    for value, ticket in reversed(list(enumerate(tickets))):
        target.client.write(target.tensor, OLD)
        receive(target.client, target.tensor, ticket)
        assert target.client.read(target.tensor, 64) == floats(*[value] * 16)


def test_a_graph_behind_a_recv_computes_with_what_came(source, target):
    left, right, total = addition(target.client.alloc(96))
    ticket = new_ticket()
    target.client.write(right, floats(*[100] * 8))
    receive(target.client, left, ticket, size=32)
    target.client.compute([3], [left, right, total])
    send(source, ticket, target, size=32)
    assert target.client.read(total, 32) == floats(*range(100, 108))


def test_a_recv_blocks_its_own_stream_alone(source, target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket)
    with target.joined(Role.ATTACH) as lane:
        left, right, total = addition(lane.alloc(96))
        lane.write(left, floats(*range(8)))
        lane.write(right, floats(*range(8)))
        lane.compute([3], [left, right, total])
        assert lane.read(total, 32) == floats(*range(0, 16, 2))
    send(source, ticket, target)
    assert target.client.read(target.tensor, 64) == NEW


def test_two_nodes_may_wait_for_each_other(source, target):
    there, back = new_ticket(), new_ticket()
    returned = source.client.alloc(64).vector(2, 16)
    receive(source.client, returned, back)
    receive(target.client, target.tensor, there)
    send(target, back, source)
    with source.joined(Role.ATTACH) as lane:
        raw = SendTensor(source.tensor.pack(), 0, 64, there, target.session, target.node.endpoint)
        lane.post(raw)
        assert source.client.read(returned, 64) == NEW


def test_a_node_can_send_to_a_session_of_its_own(source):
    other, ticket = Side(source.node), new_ticket()
    with other.client:
        receive(other.client, other.tensor, ticket)
        send(source, ticket, other)
        assert other.client.read(other.tensor, 64) == NEW


def test_who_lacks_the_ticket_writes_nothing(source, target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket)
    with target.joined(Role.PEER) as stranger:
        for guess in (new_ticket(), bytes(16), ticket[:15] + bytes([ticket[15] ^ 1])):
            deliver(stranger, guess, b"\xee" * 64)
        stranger.barrier()
    send(source, ticket, target)
    assert target.client.read(target.tensor, 64) == NEW


def test_a_ticket_is_used_once(target):
    ticket = new_ticket()
    with target.joined(Role.PEER) as peer:
        deliver(peer, ticket)
        deliver(peer, ticket, b"\xee" * 64)
        peer.barrier()
        receive(target.client, target.tensor, ticket)
        assert target.client.read(target.tensor, 64) == NEW


@pytest.mark.parametrize("command", [Command.RECV_TENSOR, Command.SEND_TENSOR, Command.PROBE_PEER])
def test_a_peer_can_neither_receive_nor_send_on_nor_probe(command, target):
    bodies = {
        Command.RECV_TENSOR: RecvTensor(target.tensor.pack(), 0, 64, new_ticket(), 1000),
        Command.SEND_TENSOR: SendTensor(target.tensor.pack(), 0, 64, new_ticket(), 1, "here:1"),
        Command.PROBE_PEER: ProbePeer(target.session, 1, target.node.endpoint),
    }
    with target.joined(Role.PEER) as peer:
        peer.post(bodies[command])
        with pytest.raises(RefusedError, match="may not send it"):
            peer.reply()
        assert peer.closed()
    target.client.ping()


def test_a_connection_of_level_3_has_none_of_it(target):
    with Client.extended(target.node.endpoint, level=3) as client:
        receive(client, target.tensor, new_ticket())
        with pytest.raises(RefusedError, match="level 4"):
            client.reply()
        assert client.closed()


def test_a_client_voids_a_ticket_on_another_connection(target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket)
    with target.joined(Role.ATTACH) as other:
        other.post(PeerData(ticket, 0))
        assert_transfer_failed(target.client, "the client gave it up", ticket)
    with target.joined(Role.PEER) as peer:
        deliver(peer, ticket)
        peer.barrier()
    assert target.client.read(target.tensor, 64) == OLD


def test_a_ticket_may_be_voided_before_its_command(target):
    ticket = new_ticket()
    with target.joined(Role.ATTACH) as other:
        other.post(PeerData(ticket, 0))
        other.ping()
        receive(target.client, target.tensor, ticket)
        assert_transfer_failed(target.client, "the client gave it up", ticket)


def test_a_client_cannot_bring_data_itself(target):
    with target.joined(Role.ATTACH) as other:
        other.send(Command.PEER_DATA, PeerData(new_ticket(), 64).pack(), NEW)
        with pytest.raises(RefusedError, match="PEER_DATA"):
            other.reply()
        assert other.closed()


def test_two_commands_cannot_wait_for_one_ticket(source, target):
    ticket = new_ticket()
    receive(target.client, target.tensor, ticket)
    with target.joined(Role.ATTACH) as other:
        spare = other.alloc(64).vector(2, 16)
        receive(other, spare, ticket)
        with pytest.raises(RefusedError, match="is waited for already"):
            other.ping()
    send(source, ticket, target)
    assert target.client.read(target.tensor, 64) == NEW
