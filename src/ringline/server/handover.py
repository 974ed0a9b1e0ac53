"""How the gatekeeper gives a connection to a session process: one message with one socket.

The two are joined by a socketpair of whole messages (SOCK_SEQPACKET): a JSON object, and the
connection as a file descriptor beside it. End of file on either side means that the other process
is gone.
"""

from __future__ import annotations

import json
import socket
from dataclasses import asdict, dataclass
from typing import Final

from ringline.wire.extension import Role

__all__ = ["Handover", "receive", "send"]

_MOST: Final = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """One connection for a session.

    Attributes:
        role: who opened it; a stock client is a client of level 0.
        level: its extension level, the lower of both ends.
        client: its address, for people.
        session: id of the session that it belongs to; secret: what ATTACH must name, as hex.
    """

    role: Role
    level: int
    client: str
    session: int
    secret: str


def send(control: socket.socket, handover: Handover, connection: socket.socket) -> None:
    """Give a connection away; the caller closes its own copy.

    Raises:
        OSError: the session process is gone, or does not take its messages.
    """
    text = json.dumps(asdict(handover)).encode()
    socket.send_fds(control, [text], [connection.fileno()])


def receive(control: socket.socket) -> tuple[Handover, socket.socket] | None:
    """Take the next connection; None when the gatekeeper is gone."""
    text, descriptors, _, _ = socket.recv_fds(control, _MOST, 1)
    if not text:
        return None
    facts = json.loads(text)
    facts["role"] = Role(facts["role"])
    return Handover(**facts), socket.socket(fileno=descriptors[0])
