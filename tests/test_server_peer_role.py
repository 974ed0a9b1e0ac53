"""What a connection of role peer reaches: the session that it names, to write, and nothing else."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringline.errors import RefusedError
from ringline.server.actions import actions_for
from ringline.wire.commands import EXTENSION_LEVEL, RULES, Command
from ringline.wire.extension import PeerData, Role
from ringline.wire.frames import REQUEST_HEADER
from tests.peers.processes import Peer, ringline_node
from tests.raw_nodes import endpoint_of, raw_node, read_banner
from tests.rendezvous_sides import NEW, OLD, Side, deliver, new_ticket, receive
from tests.server_client import Client

WRITES = {"SET_TENSOR", "SET_TENSORS", "PEER_DATA", "PEER_BARRIER", "PING"}


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--threads=1") as node:
        yield node


@pytest.fixture
def side(node: Peer) -> Iterator[Side]:
    side = Side(node)
    with side.client:
        side.client.write(side.tensor, OLD)
        yield side


def test_a_peer_may_write_and_ask_whether_that_is_done():
    may = {Command(number).name for number in actions_for(Role.PEER, EXTENSION_LEVEL)}
    assert may == WRITES


@pytest.mark.parametrize("command", sorted(set(Command.__members__) - WRITES))
def test_every_other_command_of_a_peer_ends_its_connection_and_changes_nothing(command, side):
    number = Command[command]
    with side.joined(Role.PEER) as peer:
        peer.send(number, bytes(RULES[number].least))
        with pytest.raises(RefusedError):
            peer.reply()
        assert peer.closed()
    assert side.client.read(side.tensor, 64) == OLD


def test_a_peer_of_one_session_does_not_reach_the_buffers_of_another(node, side):
    other = Side(node)
    with other.client, other.joined(Role.PEER) as peer:
        other.client.write(other.tensor, OLD)
        peer.write(side.tensor, NEW)
        with pytest.raises(RefusedError, match="this session has no buffer"):
            peer.barrier()
        peer.write(other.tensor, NEW)
        peer.barrier()
        assert other.client.read(other.tensor, 64) == NEW
    assert side.client.read(side.tensor, 64) == OLD


def test_data_for_a_ticket_of_another_session_reach_nobody(node, side):
    other, ticket = Side(node), new_ticket()
    with other.client, other.joined(Role.PEER) as peer:
        receive(side.client, side.tensor, ticket, seconds=0.5)
        deliver(peer, ticket)
        peer.ping()
        with pytest.raises(RefusedError, match="no data within"):
            side.client.ping()
    assert side.client.read(side.tensor, 64) == OLD


def test_a_peer_that_stops_in_the_middle_is_closed_after_a_while_and_the_session_goes_on():
    """A host that has lost its power says no more; what it has begun is given up."""
    with raw_node(prelude="settings.BULK_TIMEOUT = 0.3") as process:
        endpoint = endpoint_of(read_banner(process))
        with Client.extended(endpoint, level=4) as client:
            tensor, ticket = client.alloc(64).vector(1, 16), new_ticket()
            with Client.extended(
                endpoint, Role.PEER, session=client.greeting.session, level=4
            ) as peer:
                receive(client, tensor, ticket)
                header = REQUEST_HEADER.pack(Command.PEER_DATA, PeerData.LAYOUT.size + 64)
                peer.stream.send([header, PeerData(ticket, 64).pack(), NEW[:32]])
                with pytest.raises(RefusedError, match="broke off"):
                    client.ping()
                assert peer.closed()
            client.ping()
