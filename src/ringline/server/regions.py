"""From a tensor record to memory: what a peer says about one tensor, checked before it is used.

Nothing in a record is trusted. Sizes are computed with Python's integers, which do not wrap, and
bounds are subtractions. graphs.py applies the same rules to whole arrays of records; a test
compares the two. Sizes are bytes.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from ringline.errors import RefusedError
from ringline.ggml.devices import Buffer, TensorStruct
from ringline.ggml.layout import OP_COUNT, TYPE_COUNT
from ringline.ggml.types import tables
from ringline.wire.tensor import Tensor

__all__ = ["MOST_BYTES", "Region", "SessionBuffer", "describe", "locate", "tensor_size"]

#: ggml computes sizes in 64 bits; anything near that is a lie.
MOST_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True, eq=False)
class SessionBuffer:
    """One buffer of a session.

    Attributes:
        handle: its name for the client; the upper 32 bits are the session's id.
        device: index of its device on the node.
        buffer: ggml's buffer.
        base: its virtual base address; size: its length.
        memory: its bytes, in a host buffer; None elsewhere.
    """

    handle: int
    device: int
    buffer: Buffer
    base: int
    size: int
    memory: memoryview | None


class Lookup(Protocol):
    """Finds the buffer of a handle; raises RefusedError where there is none."""

    def __call__(self, handle: int, /) -> SessionBuffer: ...


class Region:
    """The memory of one tensor.

    Attributes:
        buffer: the buffer that holds it.
        offset: where it begins in the buffer.
        size: how long it is, by ggml_nbytes.
        memory: its bytes, in a host buffer; None elsewhere.
    """

    __slots__ = ("_struct", "_tensor", "buffer", "memory", "offset", "size")

    def __init__(self, buffer: SessionBuffer, offset: int, size: int, tensor: Tensor) -> None:
        self.buffer = buffer
        self.offset = offset
        self.size = size
        self.memory = None if buffer.memory is None else buffer.memory[offset : offset + size]
        self._tensor = tensor
        self._struct: TensorStruct | None = None

    def check(self, offset: int, size: int) -> None:
        """Check that `size` bytes at `offset` of the tensor lie inside it.

        Raises:
            RefusedError: they do not.
        """
        if offset > self.size or size > self.size - offset:
            raise RefusedError(
                f"{size} bytes at {offset} of tensor {self._tensor.name!r} are outside its "
                f"{self.size} bytes"
            )

    def is_contiguous(self, kind: int) -> bool:
        """Whether it is a tensor of this ggml_type, of one element a block, without gaps."""
        tensor = self._tensor
        if tensor.type != kind:
            return False
        expected = int(tables().size[kind])
        for count, stride in zip(tensor.ne, tensor.nb, strict=True):
            if count != 1 and stride != expected:
                return False
            expected *= count
        return True

    def part(self, offset: int, size: int) -> memoryview | None:
        """Some of the tensor's bytes, in a host buffer; None elsewhere.

        Raises:
            RefusedError: they are not inside the tensor.
        """
        self.check(offset, size)
        return None if self.memory is None else self.memory[offset : offset + size]

    def struct(self) -> TensorStruct:
        """The tensor as a C struct, without op and sources: for calls that move its data."""
        if self._struct is None:
            struct = describe(self._tensor)
            struct.record["op"] = 0
            struct.record["buffer"] = self.buffer.buffer.address
            struct.record["data"] = self.buffer.buffer.base + self.offset
            self._struct = struct
        return self._struct


def locate(raw: bytes, lookup: Lookup) -> Region:
    """Find the memory of a tensor record.

    Args:
        raw: the packed record.
        lookup: finds buffers by handle.

    Raises:
        RefusedError: a type, a shape, a handle or an address that cannot be; names the tensor.
    """
    tensor = Tensor.unpack(raw)
    try:
        size = tensor_size(tensor.type, tensor.ne, tensor.nb)
        buffer = lookup(tensor.buffer)
    except RefusedError as error:
        raise RefusedError(f"tensor {tensor.name!r}: {error.cause}") from None
    offset = tensor.data - buffer.base
    if offset < 0 or offset > buffer.size or size > buffer.size - offset:
        raise RefusedError(
            f"tensor {tensor.name!r}: {size} bytes at {tensor.data:#x} are outside its buffer "
            f"({buffer.size} bytes at {buffer.base:#x})"
        )
    return Region(buffer, offset, size, tensor)


def tensor_size(kind: int, ne: Sequence[int], nb: Sequence[int]) -> int:
    """Bytes from the first to the last of a tensor, as ggml_nbytes counts them.

    Args:
        kind: ggml_type.
        ne: elements per dimension.
        nb: strides per dimension, bytes.

    Raises:
        RefusedError: the type is none, the row holds no whole blocks, or the size is absurd.
    """
    block = int(tables().block[kind]) if kind < TYPE_COUNT else 0
    if block == 0:
        raise RefusedError(f"{kind} is no tensor type")
    if ne[0] % block:
        raise RefusedError(f"a row of {ne[0]} elements holds no whole blocks of {block}")
    if ne[0] * ne[1] * ne[2] * ne[3] > MOST_BYTES:
        raise RefusedError(f"a shape of {list(ne)} is too large")
    if sum(map(operator.mul, ne, nb)) > MOST_BYTES:
        raise RefusedError(f"a shape of {list(ne)} with strides of {list(nb)} bytes is too large")
    if 0 in ne:
        return 0
    row = ne[0] * nb[0] // block if block > 1 else int(tables().size[kind]) + (ne[0] - 1) * nb[0]
    return row + sum((count - 1) * stride for count, stride in zip(ne[1:], nb[1:], strict=True))


def describe(tensor: Tensor) -> TensorStruct:
    """A C struct with the tensor's type, shape and op; no buffer, no data, no sources.

    Raises:
        RefusedError: the type, the shape or the op cannot be.
    """
    tensor_size(tensor.type, tensor.ne, tensor.nb)
    if tensor.op >= OP_COUNT:
        raise RefusedError(f"tensor {tensor.name!r}: {tensor.op} is no op")
    struct = TensorStruct()
    record = struct.record
    record["type"], record["op"], record["flags"] = tensor.type, tensor.op, tensor.flags
    record["ne"], record["nb"] = tensor.ne, tensor.nb
    record["op_params"] = tensor.op_params
    record["view_offs"] = tensor.view_offs
    record["name"] = tensor.name.encode("utf-8", "replace")[:63]
    return struct
