"""The messages between two ringline ends, extension levels 1 to 4.

Same conventions as messages.py. Widths are fixed here and stated in docs/protocol.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, ClassVar, Final

from ringline.errors import ProtocolError
from ringline.wire.commands import Command
from ringline.wire.messages import GetTensor, Message, Request, Result, SetTensor

__all__ = [
    "CopyTensorTo",
    "ExtHello",
    "ExtHelloReply",
    "Feature",
    "PeerBarrier",
    "PeerData",
    "Ping",
    "ProbePeer",
    "RecvTensor",
    "Role",
    "SendTensor",
    "SupportsOp",
    "pack_get_tensors",
    "unpack_get_tensors",
    "unpack_set_tensors",
]

COUNT: Final = struct.Struct("<I")
LENGTH: Final = struct.Struct("<Q")


class Role(IntEnum):
    """Who opens a connection: a client (new session), its further connections, a peer node."""

    CLIENT = 0
    ATTACH = 1
    PEER = 2


class Feature(IntEnum):
    """Bits of `features`: abilities apart from the level."""

    SUPPORTS_OP = 1
    WEIGHT_CACHE = 2
    COUNTERS = 4


@dataclass(frozen=True, slots=True)
class ExtHello(Request):
    """Second message of an extended connection.

    `session` and `secret` are zero for a client, the session's for ATTACH. A PEER names the session
    it writes to: the upper 32 bits of every buffer handle are the id of the session that owns it.
    """

    COMMAND: ClassVar = Command.EXT_HELLO
    LAYOUT: ClassVar = struct.Struct("<BBHIQ16s")
    level: int
    role: int
    reserved: int = 0
    features: int = 0
    session: int = 0
    secret: bytes = bytes(16)


@dataclass(frozen=True, slots=True)
class ExtHelloReply(Message):
    """The node's answer: its session for this client, its limits, and `about` in words.

    Attributes:
        level, features: what the node has.
        session, secret: what ATTACH must name; the id is a u32 in a u64.
        most_request: the largest request body, bytes; most_connections: per session.
        about: {"name", "version", "engine", "devices": [{"name", "description", "kind", ...}]}.
    """

    LAYOUT: ClassVar = struct.Struct("<BBHIQ16sQII")
    level: int
    features: int
    session: int
    secret: bytes
    most_request: int
    most_connections: int
    about: dict[str, object]

    def pack(self) -> bytes:
        """Fixed part, then `about` as JSON text."""
        text = json.dumps(self.about, ensure_ascii=False).encode("utf-8")
        head = (self.level, 0, 0, self.features, self.session, self.secret)
        return self.LAYOUT.pack(*head, self.most_request, self.most_connections, len(text)) + text

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> ExtHelloReply:
        """Read an answer.

        Raises:
            ProtocolError: it is cut short, or `about` is not a JSON object.
        """
        if len(raw) < cls.LAYOUT.size:
            raise ProtocolError(f"an EXT_HELLO reply of {len(raw)} bytes is too short")
        level, _, _, features, session, secret, most, connections, length = cls.LAYOUT.unpack_from(
            raw
        )
        text = bytes(raw[cls.LAYOUT.size :])
        if len(text) != length:
            raise ProtocolError(f"EXT_HELLO announces {length} bytes of text, has {len(text)}")
        try:
            about = json.loads(text)
        except ValueError as error:
            raise ProtocolError(f"EXT_HELLO describes the node in bad JSON: {error}") from None
        if not isinstance(about, dict):
            raise ProtocolError("EXT_HELLO describes the node by something that is no object")
        return cls(level, features, session, secret, most, connections, about)


@dataclass(frozen=True, slots=True)
class Ping(Request):
    """Answered in order: also the point where errors of commands without reply come out."""

    COMMAND: ClassVar = Command.PING
    LAYOUT: ClassVar = struct.Struct("<")
    Reply: ClassVar = Result


@dataclass(frozen=True, slots=True)
class PeerBarrier(Request):
    """From node to node: its reply proves that the SET_TENSOR before it has been done."""

    COMMAND: ClassVar = Command.PEER_BARRIER
    LAYOUT: ClassVar = struct.Struct("<")
    Reply: ClassVar = Result


@dataclass(frozen=True, slots=True)
class SupportsOp(Request):
    """Can the device compute this tensor's op? Same body as GET_ALLOC_SIZE."""

    COMMAND: ClassVar = Command.SUPPORTS_OP
    LAYOUT: ClassVar = struct.Struct("<I296s2960s")
    Reply: ClassVar = Result
    device: int
    tensor: bytes
    sources: bytes


@dataclass(frozen=True, slots=True)
class CopyTensorTo(Request):
    """Send `size` bytes of `src` to tensor `dst` of the node at `endpoint` (docs/protocol.md)."""

    COMMAND: ClassVar = Command.COPY_TENSOR_TO
    LAYOUT: ClassVar = struct.Struct("<296s296sQI")
    Reply: ClassVar = Result
    src: bytes
    dst: bytes
    size: int
    endpoint: str

    def pack(self) -> bytes:
        """Fixed part, then the endpoint's text."""
        name = self.endpoint.encode("utf-8")
        return self.LAYOUT.pack(self.src, self.dst, self.size, len(name)) + name

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> CopyTensorTo:
        """Read a request.

        Raises:
            ProtocolError: it is cut short, or the endpoint is not text of the announced length.
        """
        return cls(*_with_endpoint(cls, raw))


@dataclass(frozen=True, slots=True)
class SendTensor(Request):
    """Snapshot a part of `tensor` now and send it to whoever waits for `ticket` at `endpoint`.

    The source goes on with the next command at once. `session` is the destination's.
    """

    COMMAND: ClassVar = Command.SEND_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296sQQ16sQI")
    tensor: bytes
    offset: int
    size: int
    ticket: bytes
    session: int
    endpoint: str

    def pack(self) -> bytes:
        """Fixed part, then the endpoint's text."""
        name = self.endpoint.encode("utf-8")
        head = (self.tensor, self.offset, self.size, self.ticket, self.session, len(name))
        return self.LAYOUT.pack(*head) + name

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> SendTensor:
        """Read a request.

        Raises:
            ProtocolError: it is cut short, or the endpoint is not text of the announced length.
        """
        return cls(*_with_endpoint(cls, raw))


@dataclass(frozen=True, slots=True)
class RecvTensor(Request):
    """A SET_TENSOR whose data come from another node, under `ticket`, within `deadline_ms`."""

    COMMAND: ClassVar = Command.RECV_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296sQQ16sI")
    tensor: bytes
    offset: int
    size: int
    ticket: bytes
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class PeerData(Request):
    """What stands before a ticket's data. From a client, with no data, it voids the ticket."""

    COMMAND: ClassVar = Command.PEER_DATA
    LAYOUT: ClassVar = struct.Struct("<16sQ")
    ticket: bytes
    size: int


@dataclass(frozen=True, slots=True)
class ProbePeer(Request):
    """Can this node send to a session at `endpoint`, and how fast? Tries `size` bytes."""

    COMMAND: ClassVar = Command.PROBE_PEER
    LAYOUT: ClassVar = struct.Struct("<QQI")
    session: int
    size: int
    endpoint: str

    @dataclass(frozen=True, slots=True)
    class Reply(Message):
        """Result 1: yes, with the round trip and the rate; 0: no, the rest is 0."""

        LAYOUT: ClassVar = struct.Struct("<BQQ")
        result: int
        round_trip_ns: int
        bytes_per_second: int

    def pack(self) -> bytes:
        """Fixed part, then the endpoint's text."""
        name = self.endpoint.encode("utf-8")
        return self.LAYOUT.pack(self.session, self.size, len(name)) + name

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> ProbePeer:
        """Read a request.

        Raises:
            ProtocolError: it is cut short, or the endpoint is not text of the announced length.
        """
        return cls(*_with_endpoint(cls, raw))


def _with_endpoint(kind: type[Request], raw: bytes | memoryview) -> list[Any]:
    """Fields of a message whose layout ends in the length of an endpoint, and the endpoint."""
    name = kind.COMMAND.name
    if len(raw) < kind.LAYOUT.size:
        raise ProtocolError(f"{len(raw)} bytes are too few", command=name)
    *fields, length = kind.LAYOUT.unpack_from(raw)
    text = bytes(raw[kind.LAYOUT.size :])
    if len(text) != length:
        cause = f"an endpoint of {length} bytes is announced, {len(text)} came"
        raise ProtocolError(cause, command=name)
    try:
        return [*fields, text.decode("utf-8")]
    except UnicodeDecodeError:
        raise ProtocolError("the endpoint is not UTF-8 text", command=name) from None


def pack_get_tensors(reads: Sequence[GetTensor]) -> bytes:
    """Body of GET_TENSORS: count u32, then GET_TENSOR bodies."""
    return COUNT.pack(len(reads)) + b"".join(read.pack() for read in reads)


def unpack_get_tensors(raw: memoryview) -> list[GetTensor]:
    """Read the body of GET_TENSORS.

    Raises:
        ProtocolError: the size is not that of the announced count.
    """
    (count,) = COUNT.unpack_from(raw)
    size = GetTensor.LAYOUT.size
    if len(raw) - COUNT.size != count * size:
        raise ProtocolError(f"GET_TENSORS announces {count} reads in {len(raw) - COUNT.size} bytes")
    starts = range(COUNT.size, len(raw), size)
    return [GetTensor.unpack(raw[start : start + size]) for start in starts]


def unpack_set_tensors(raw: memoryview) -> Iterator[tuple[SetTensor, memoryview]]:
    """Read the body of SET_TENSORS, write by write, with its data.

    The body is count u32, then for each: length u64, SET_TENSOR body of that length.

    Raises:
        ProtocolError: a length does not fit.
    """
    (count,) = COUNT.unpack_from(raw)
    position, head = COUNT.size, SetTensor.LAYOUT.size
    for index in range(count):
        left = len(raw) - position - LENGTH.size
        length = LENGTH.unpack_from(raw, position)[0] if left >= 0 else 0
        if left < 0 or not head <= length <= left:
            raise ProtocolError(f"write {index} of SET_TENSORS does not fit its frame")
        start = position + LENGTH.size
        position = start + length
        yield SetTensor.unpack(raw[start : start + head]), raw[start + head : position]
    if position != len(raw):
        raise ProtocolError(f"SET_TENSORS has {len(raw) - position} bytes after its last write")
