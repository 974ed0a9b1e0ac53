"""Both sides of a rendezvous for tests of the node: raw clients of level 4 and their tensors."""

from __future__ import annotations

import os

import pytest

from ringline.errors import RefusedError
from ringline.wire.extension import PeerData, ProbePeer, RecvTensor, Role, SendTensor
from ringline.wire.frames import ErrorCode
from ringline.wire.tensor import Tensor
from tests.peers.processes import Peer, patience
from tests.server_client import Client, floats

OLD, NEW = floats(*[-1.0] * 16), floats(*range(16))


class Side:
    """A client of level 4, and a tensor of 64 bytes on its node."""

    def __init__(self, node: Peer) -> None:
        self.node = node
        self.client = Client.extended(node.endpoint, level=4)
        self.tensor = self.client.alloc(64).vector(1, 16)

    @property
    def session(self) -> int:
        return self.client.greeting.session

    def joined(self, role: Role) -> Client:
        """A further connection to the session: of the client's own, or of another node."""
        secret = self.client.greeting.secret if role is Role.ATTACH else bytes(16)
        return Client.extended(
            self.node.endpoint, role, session=self.session, secret=secret, level=4
        )


def new_ticket() -> bytes:
    return os.urandom(16)


def send(
    side: Side, ticket: bytes, to: Side, *, tensor: Tensor | None = None, offset: int = 0,
    size: int = 64, endpoint: str = "",
) -> None:  # fmt: skip
    raw = (tensor or side.tensor).pack()
    where = endpoint or to.node.endpoint
    side.client.post(SendTensor(raw, offset, size, ticket, to.session, where))


def receive(
    client: Client, tensor: Tensor, ticket: bytes, *, offset: int = 0, size: int = 64,
    seconds: float = 60,
) -> None:  # fmt: skip
    deadline_ms = int(1000 * patience(seconds))
    client.post(RecvTensor(tensor.pack(), offset, size, ticket, deadline_ms))


def deliver(peer: Client, ticket: bytes, data: bytes = NEW) -> None:
    """What the worker of another node does."""
    peer.post(PeerData(ticket, len(data)), data)


def assert_transfer_failed(client: Client, cause: str, *names: bytes) -> None:
    """The next command with a reply says what has failed; then all goes on."""
    with pytest.raises(RefusedError, match=cause) as failure:
        client.ping()
    assert failure.value.code == ErrorCode.TRANSFER
    for ticket in names:
        assert ticket.hex() in str(failure.value)
    client.ping()


def probe(side: Side, endpoint: str, session: int, size: int = 4096) -> ProbePeer.Reply:
    return ProbePeer.Reply.unpack(side.client.call(ProbePeer(session, size, endpoint)))
