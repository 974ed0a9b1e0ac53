"""Frames: how a request, a reply and an error are delimited.

The layouts:

    request  command u8 | size u64 | body[size]
    reply    size u64   | body[size]
    error    2^64-1 u64 | code u32 | length u32 | text utf-8[length]      (extended sessions only)
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import Final

from ringline.errors import ProtocolError
from ringline.wire.commands import RULES, Command, Rule

__all__ = [
    "ERROR_HEADER",
    "ERROR_SIZE",
    "MOST_ERROR_TEXT",
    "REPLY_HEADER",
    "REQUEST_HEADER",
    "ErrorCode",
    "check_request",
    "error_frame",
    "reply_frame",
    "request_frame",
]

REQUEST_HEADER: Final = struct.Struct("<BQ")
REPLY_HEADER: Final = struct.Struct("<Q")
ERROR_HEADER: Final = struct.Struct("<II")
#: the reply size that announces an error frame.
ERROR_SIZE: Final = (1 << 64) - 1
#: an error text is cut at this many bytes.
MOST_ERROR_TEXT: Final = 4096


class ErrorCode(IntEnum):
    """What the code of an error frame tells the client to do."""

    #: the request cannot be served; asking again is no use.
    REFUSED = 1
    #: a rendezvous failed: the step may be decoded again over another path.
    TRANSFER = 2


def request_frame(command: Command, body: bytes = b"") -> bytes:
    """One request, whole."""
    return REQUEST_HEADER.pack(command, len(body)) + body


def reply_frame(body: bytes) -> bytes:
    """One reply, whole."""
    return REPLY_HEADER.pack(len(body)) + body


def error_frame(code: int, text: str) -> bytes:
    """An error in the place of a reply; the text is cut at MOST_ERROR_TEXT bytes."""
    raw = text.encode("utf-8")[:MOST_ERROR_TEXT]
    return REPLY_HEADER.pack(ERROR_SIZE) + ERROR_HEADER.pack(code, len(raw)) + raw


def check_request(number: int, size: int, level: int) -> tuple[Command, Rule]:
    """Check the header of a request before anything is read or made room for.

    Args:
        number: the command byte.
        size: the announced size of the body, bytes.
        level: the extension level of this connection, 0 for a stock peer.

    Raises:
        ProtocolError: an unknown command, one of a higher level, or a size out of its limits.
    """
    try:
        command = Command(number)
    except ValueError:
        raise ProtocolError(f"unknown command {number}") from None
    rule = RULES[command]
    if rule.level > level:
        raise ProtocolError(
            f"a command of extension level {rule.level} on a connection of level {level}",
            command=command.name,
        )
    if not rule.least <= size <= rule.most:
        raise ProtocolError(
            f"a body of {size} bytes where {rule.least} to {rule.most} are allowed",
            command=command.name,
        )
    return command, rule
