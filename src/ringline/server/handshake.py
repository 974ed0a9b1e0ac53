"""The first bytes of a connection, as a machine without a socket.

    HELLO -> our version -> the first command's number:
        EXT_HELLO: read it too, then route by its role        (a ringline client or peer)
        anything else: left unread, the session serves it     (a stock client)

Exactly the bytes of HELLO and EXT_HELLO are read, never one more: the connection is handed to
another process, which reads on from there.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

from ringline.errors import ProtocolError
from ringline.wire.commands import BASE_VERSION, EXTENSION_LEVEL, Command
from ringline.wire.extension import ExtHello
from ringline.wire.frames import REQUEST_HEADER, reply_frame
from ringline.wire.messages import Hello

__all__ = ["HELLO_REPLY", "Handshake", "Stage"]

_HEADER: Final = REQUEST_HEADER.size
_HELLO: Final = _HEADER + Hello.LAYOUT.size
_EXT_HELLO: Final = _HEADER + ExtHello.LAYOUT.size
#: how a client of TLS begins.
_TLS: Final = 0x16
#: all-zero caps: TCP only.
HELLO_REPLY: Final = reply_frame(Hello.Reply(*BASE_VERSION, EXTENSION_LEVEL).pack())


class Stage(Enum):
    """What is awaited; a client may be idle in FIRST_COMMAND, the others have a deadline."""

    HELLO = auto()
    FIRST_COMMAND = auto()
    EXT_HELLO = auto()
    DONE = auto()


class Handshake:
    """One connection's handshake.

    Attributes:
        stage: what is awaited.
        extended: the EXT_HELLO that came; None while DONE means a stock client.
    """

    def __init__(self) -> None:
        self.stage = Stage.HELLO
        self.extended: ExtHello | None = None
        self._bytes = b""

    def wanted(self) -> int:
        """How many more bytes belong to the message that is being read, at most."""
        whole = {Stage.HELLO: _HELLO, Stage.EXT_HELLO: _EXT_HELLO}.get(self.stage, 0)
        return whole - len(self._bytes) if whole else 0

    def peeked(self, number: int) -> None:
        """The first command's number is known; it has not been read.

        A stock client is done here. A ringline client goes on with EXT_HELLO.
        """
        self.stage = Stage.EXT_HELLO if number == Command.EXT_HELLO else Stage.DONE

    def feed(self, data: bytes) -> bytes:
        """Take bytes that were read, at most wanted(), and return what to send.

        Raises:
            ProtocolError: this is no HELLO or EXT_HELLO; says what it is.
        """
        self._bytes += data
        if self.stage is Stage.HELLO:
            return self._feed_hello()
        self._feed_ext_hello()
        return b""

    def _feed_hello(self) -> bytes:
        _check_hello(self._bytes)
        if len(self._bytes) < _HELLO:
            return b""
        self._bytes = b""
        self.stage = Stage.FIRST_COMMAND
        return HELLO_REPLY

    def _feed_ext_hello(self) -> None:
        if len(self._bytes) >= _HEADER:
            _, size = REQUEST_HEADER.unpack_from(self._bytes)
            if size != ExtHello.LAYOUT.size:
                raise ProtocolError(
                    f"a body of {size} bytes where {ExtHello.LAYOUT.size} are due",
                    command="EXT_HELLO",
                )
        if len(self._bytes) == _EXT_HELLO:
            self.extended = ExtHello.unpack(self._bytes[_HEADER:])
            self.stage = Stage.DONE


def _check_hello(data: bytes) -> None:
    """Refuse as early as the bytes allow: a scanner may never send enough for a whole HELLO."""
    if data[0] == _TLS:
        raise ProtocolError("it speaks TLS, and this port does not")
    if data[0] != Command.HELLO:
        raise ProtocolError(f"the first byte is {data[0]}, HELLO begins with {int(Command.HELLO)}")
    if len(data) < _HEADER:
        return
    _, size = REQUEST_HEADER.unpack_from(data)
    if size != Hello.LAYOUT.size:
        version = ".".join(map(str, BASE_VERSION))
        raise ProtocolError(
            f"HELLO has {size} bytes, not {Hello.LAYOUT.size}: the client does not speak ggml RPC "
            f"{version}; update the older of the two"
        )
