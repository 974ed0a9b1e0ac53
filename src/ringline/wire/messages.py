"""The messages of the base protocol: one class each, its fields are the layout.

`COMMAND` and `Reply` stand on the request's class; client and server read the same class. Tensor
fields hold the packed record (296 bytes, see tensor.py): most of them are passed on or looked up
whole. Messages whose body ends in data (SET_TENSOR) describe only what stands before the data.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import ClassVar, Self

from ringline.errors import ProtocolError
from ringline.wire.commands import Command

__all__ = [
    "AllocBuffer",
    "BufferClear",
    "BufferGetBase",
    "CopyTensor",
    "DeviceCount",
    "FreeBuffer",
    "GetAlignment",
    "GetAllocSize",
    "GetDeviceMemory",
    "GetMaxSize",
    "GetTensor",
    "GraphRecompute",
    "Hello",
    "InitTensor",
    "MemsetTensor",
    "Message",
    "Request",
    "SetTensor",
    "SetTensorHash",
]


class Message:
    """A dataclass whose fields, in order, are what LAYOUT packs."""

    __slots__: ClassVar[tuple[str, ...]] = ()
    LAYOUT: ClassVar[struct.Struct]

    def pack(self) -> bytes:
        """The bytes of this message."""
        # Not astuple(): it copies recursively, and took half of the time of a small command.
        return self.LAYOUT.pack(*[getattr(self, name) for name in self.__slots__])

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> Self:
        """Read a message from the start of `raw`.

        Raises:
            ProtocolError: `raw` is too short.
        """
        if len(raw) < cls.LAYOUT.size:
            raise ProtocolError(f"{cls.__name__} wants {cls.LAYOUT.size} bytes, got {len(raw)}")
        return cls(*cls.LAYOUT.unpack_from(raw))


class Request(Message):
    """A message that a client sends; COMMAND is its command byte."""

    __slots__ = ()
    COMMAND: ClassVar[Command]


@dataclass(frozen=True, slots=True)
class Number(Message):
    """A reply of one u64."""

    LAYOUT: ClassVar = struct.Struct("<Q")
    value: int


@dataclass(frozen=True, slots=True)
class Count(Message):
    """A reply of one u32."""

    LAYOUT: ClassVar = struct.Struct("<I")
    value: int


@dataclass(frozen=True, slots=True)
class Result(Message):
    """A reply of one u8: 1 done or yes, 0 not done or no."""

    LAYOUT: ClassVar = struct.Struct("<B")
    value: int


@dataclass(frozen=True, slots=True)
class Hello(Request):
    """First message of a connection. All-zero caps mean "TCP only"; nothing else goes there."""

    COMMAND: ClassVar = Command.HELLO
    LAYOUT: ClassVar = struct.Struct("<24s")
    caps: bytes = bytes(24)

    @dataclass(frozen=True, slots=True)
    class Reply(Message):
        """The node's base version; `level` is the padding byte, 0 in stock builds."""

        LAYOUT: ClassVar = struct.Struct("<BBBB24s")
        major: int
        minor: int
        patch: int
        level: int
        caps: bytes = bytes(24)


@dataclass(frozen=True, slots=True)
class DeviceCount(Request):
    """How many devices does the node lend?"""

    COMMAND: ClassVar = Command.DEVICE_COUNT
    LAYOUT: ClassVar = struct.Struct("<")
    Reply: ClassVar = Count


@dataclass(frozen=True, slots=True)
class AllocBuffer(Request):
    """Make a buffer of `size` bytes on a device."""

    COMMAND: ClassVar = Command.ALLOC_BUFFER
    LAYOUT: ClassVar = struct.Struct("<IQ")
    device: int
    size: int

    @dataclass(frozen=True, slots=True)
    class Reply(Message):
        """Handle 0: no room. Size is what was really allocated."""

        LAYOUT: ClassVar = struct.Struct("<QQ")
        handle: int
        size: int


@dataclass(frozen=True, slots=True)
class GetAlignment(Request):
    """Alignment of tensors on a device, bytes."""

    COMMAND: ClassVar = Command.GET_ALIGNMENT
    LAYOUT: ClassVar = struct.Struct("<I")
    Reply: ClassVar = Number
    device: int


@dataclass(frozen=True, slots=True)
class GetMaxSize(Request):
    """Largest buffer of a device, bytes."""

    COMMAND: ClassVar = Command.GET_MAX_SIZE
    LAYOUT: ClassVar = struct.Struct("<I")
    Reply: ClassVar = Number
    device: int


@dataclass(frozen=True, slots=True)
class GetDeviceMemory(Request):
    """Memory of a device, bytes."""

    COMMAND: ClassVar = Command.GET_DEVICE_MEMORY
    LAYOUT: ClassVar = struct.Struct("<I")
    device: int

    @dataclass(frozen=True, slots=True)
    class Reply(Message):
        """Free and total bytes."""

        LAYOUT: ClassVar = struct.Struct("<QQ")
        free: int
        total: int


@dataclass(frozen=True, slots=True)
class BufferGetBase(Request):
    """The (virtual) address where a buffer begins."""

    COMMAND: ClassVar = Command.BUFFER_GET_BASE
    LAYOUT: ClassVar = struct.Struct("<Q")
    Reply: ClassVar = Number
    handle: int


@dataclass(frozen=True, slots=True)
class FreeBuffer(Request):
    """Give a buffer back; the node forgets its stored graphs too."""

    COMMAND: ClassVar = Command.FREE_BUFFER
    LAYOUT: ClassVar = struct.Struct("<Q")
    handle: int


@dataclass(frozen=True, slots=True)
class BufferClear(Request):
    """Fill a buffer with one byte value."""

    COMMAND: ClassVar = Command.BUFFER_CLEAR
    LAYOUT: ClassVar = struct.Struct("<QB")
    handle: int
    value: int


@dataclass(frozen=True, slots=True)
class SetTensor(Request):
    """What stands before the data of a SET_TENSOR; `offset` counts from the tensor's data."""

    COMMAND: ClassVar = Command.SET_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296sBQ")
    tensor: bytes
    cache: int
    offset: int


@dataclass(frozen=True, slots=True)
class SetTensorHash(Request):
    """Does the node have data with this FNV-1a-64 hash in its cache? Then it sets it."""

    COMMAND: ClassVar = Command.SET_TENSOR_HASH
    LAYOUT: ClassVar = struct.Struct("<296sQQ")
    Reply: ClassVar = Result
    tensor: bytes
    offset: int
    hash: int


@dataclass(frozen=True, slots=True)
class GetTensor(Request):
    """Read `size` bytes at `offset` of a tensor; the reply is the data."""

    COMMAND: ClassVar = Command.GET_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296sQQ")
    tensor: bytes
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class CopyTensor(Request):
    """Copy one tensor to another on the same node."""

    COMMAND: ClassVar = Command.COPY_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296s296s")
    Reply: ClassVar = Result
    src: bytes
    dst: bytes


@dataclass(frozen=True, slots=True)
class InitTensor(Request):
    """Let the buffer prepare a tensor (padding of quantised rows)."""

    COMMAND: ClassVar = Command.INIT_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296s")
    tensor: bytes


@dataclass(frozen=True, slots=True)
class GetAllocSize(Request):
    """How many bytes does this tensor need on the device? `sources` are ten packed records."""

    COMMAND: ClassVar = Command.GET_ALLOC_SIZE
    LAYOUT: ClassVar = struct.Struct("<I296s2960s")
    Reply: ClassVar = Number
    device: int
    tensor: bytes
    sources: bytes


@dataclass(frozen=True, slots=True)
class GraphRecompute(Request):
    """Compute the stored graph of a device again."""

    COMMAND: ClassVar = Command.GRAPH_RECOMPUTE
    LAYOUT: ClassVar = struct.Struct("<I")
    device: int


@dataclass(frozen=True, slots=True)
class MemsetTensor(Request):
    """Fill `size` bytes at `offset` of a tensor with one byte value."""

    COMMAND: ClassVar = Command.MEMSET_TENSOR
    LAYOUT: ClassVar = struct.Struct("<296sQQB")
    tensor: bytes
    offset: int
    size: int
    value: int
