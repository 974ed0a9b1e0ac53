"""Commands about devices: count, memory, alignment, sizes, abilities."""

from __future__ import annotations

from ringline.ggml.devices import TensorStruct
from ringline.ggml.layout import MAX_SRC
from ringline.ggml.types import tables
from ringline.server.context import Context
from ringline.server.ops import least_sources
from ringline.server.regions import describe
from ringline.server.rules import ruled
from ringline.wire.commands import TENSOR_SIZE
from ringline.wire.extension import SupportsOp
from ringline.wire.messages import (
    DeviceCount,
    GetAlignment,
    GetAllocSize,
    GetDeviceMemory,
    GetMaxSize,
    Message,
)
from ringline.wire.tensor import Tensor


def device_count(_: DeviceCount, context: Context) -> Message:
    """How many devices the node lends."""
    return DeviceCount.Reply(len(context.session.devices))


def get_alignment(request: GetAlignment, context: Context) -> Message:
    """Alignment of tensors on a device."""
    return GetAlignment.Reply(context.device(request.device).alignment())


def get_max_size(request: GetMaxSize, context: Context) -> Message:
    """Largest buffer of a device."""
    return GetMaxSize.Reply(context.device(request.device).max_size())


def get_device_memory(request: GetDeviceMemory, context: Context) -> Message:
    """Free and total memory of a device, now."""
    return GetDeviceMemory.Reply(*context.device(request.device).memory())


def get_alloc_size(request: GetAllocSize, context: Context) -> Message:
    """What a tensor takes in a buffer of its device: of the one that it is in, or the one named."""
    buffer = context.registry.find(Tensor.unpack(request.tensor).buffer)
    device = context.device(request.device if buffer is None else buffer.device)
    operation = _Operation(request.tensor, request.sources, context)
    if not operation.complete:
        # Whoever asks about an op without its sources (llama.cpp's own test does) gets the size
        # of the plain tensor: ggml would follow null pointers.
        operation.tensor.record["op"] = 0
    return GetAllocSize.Reply(device.alloc_size(operation.tensor))


def supports_op(request: SupportsOp, context: Context) -> Message:
    """Whether a device can compute a tensor's op; never where a graph with it would be refused."""
    device = context.device(request.device)
    operation = _Operation(request.tensor, request.sources, context)
    asked = operation.complete and bool(ruled()[int(operation.tensor.record["op"])])
    able = asked and device.supports_op(operation.tensor.address)
    return SupportsOp.Reply(int(able))


class _Operation:
    """A tensor with its sources as C structs, for a question to ggml; nothing has data.

    Attributes:
        tensor: the tensor; its sources are linked.
        complete: whether the op has the sources that it needs, and is one that may be asked about.
    """

    def __init__(self, tensor: bytes, sources: bytes, context: Context) -> None:
        records = [sources[at : at + TENSOR_SIZE] for at in range(0, len(sources), TENSOR_SIZE)]
        self.tensor = _struct(tensor, context)
        self._sources = [
            _struct(record, context) if any(record[:8]) else None for record in records
        ]
        for index, source in enumerate(self._sources[:MAX_SRC]):
            self.tensor.record["src"][index] = source.address if source else 0
        op = int(self.tensor.record["op"])
        needed = int(least_sources()[op])
        custom = bool(tables().custom[op])
        self.complete = not custom and None not in self._sources[:needed]


def _struct(raw: bytes, context: Context) -> TensorStruct:
    """Describe a record; a buffer of this session is named, for its buffer type."""
    tensor = Tensor.unpack(raw)
    struct = describe(tensor)
    buffer = context.registry.find(tensor.buffer)
    if buffer is not None:
        struct.record["buffer"] = buffer.buffer.address
    return struct
