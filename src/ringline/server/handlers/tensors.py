"""Commands that move the data of tensors: set, get, copy, fill, prepare.

Host buffers are written and read in place, so the network card's bytes are copied once. Other
devices go through staging memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ringline.errors import RefusedError
from ringline.ggml.layout import Status
from ringline.ggml.transfer import copy_tensor as copy_data
from ringline.ggml.transfer import get_tensor as read_data
from ringline.ggml.transfer import memset_tensor as fill_data
from ringline.ggml.transfer import set_tensor as write_data
from ringline.server.context import Context
from ringline.server.limits import MOST_BATCH, STAGING
from ringline.server.regions import Region
from ringline.wire.messages import (
    CopyTensor,
    GetTensor,
    InitTensor,
    MemsetTensor,
    Message,
    SetTensor,
    SetTensorHash,
)

Bytes = bytes | bytearray | memoryview


def set_tensor(request: SetTensor, size: int, context: Context) -> Iterator[memoryview]:
    """Write into a tensor: yields where the next bytes from the network go, `size` in all.

    Raises:
        RefusedError: on the first step: the tensor or the range cannot be.
    """
    region = context.registry.resolve(request.tensor)
    place = region.part(request.offset, size)
    if place is not None:
        yield place
        return
    staging = bytearray(min(size, STAGING))
    for start in range(0, size, STAGING):
        count = min(size - start, STAGING)
        yield memoryview(staging)[:count]
        write_data(region.struct(), staging, count, request.offset + start)


def get_tensor(request: GetTensor, context: Context) -> Sequence[Bytes]:
    """Read from a tensor."""
    region = context.registry.resolve(request.tensor)
    return [read(region, request.offset, request.size)]


def get_tensors(requests: Sequence[GetTensor], context: Context) -> Sequence[Bytes]:
    """Read from several tensors; each read and their sum are checked before room is made."""
    regions = [context.registry.resolve(request.tensor) for request in requests]
    for region, request in zip(regions, requests, strict=True):
        region.check(request.offset, request.size)
    total = sum(request.size for request in requests)
    if total > MOST_BATCH:
        text = f"{total} bytes in one GET_TENSORS, {MOST_BATCH} are allowed"
        raise RefusedError(text, rule="limit-batch")
    return [
        read(region, request.offset, request.size)
        for region, request in zip(regions, requests, strict=True)
    ]


def read(region: Region, offset: int, size: int) -> Bytes:
    """The bytes of a part of a tensor: in place where that is possible, else a copy.

    Raises:
        RefusedError: the part is not inside the tensor.
    """
    place = region.part(offset, size)
    return read_data(region.struct(), size, offset) if place is None else place


def set_tensor_hash(_: SetTensorHash, __: Context) -> Message:
    """Whether the node has this data already: there is no weight cache yet, so it never has."""
    return SetTensorHash.Reply(0)


def copy_tensor(request: CopyTensor, context: Context) -> Message:
    """Copy a tensor to another one of the same session; 0 where the devices cannot."""
    src = context.registry.resolve(request.src)
    dst = context.registry.resolve(request.dst)
    if src.size > dst.size:
        raise RefusedError(f"a copy of {src.size} bytes into a tensor of {dst.size}")
    if src.size == 0:
        return CopyTensor.Reply(1)
    return CopyTensor.Reply(int(copy_data(src.struct(), dst.struct())))


def memset_tensor(request: MemsetTensor, context: Context) -> None:
    """Fill a part of a tensor with one byte value."""
    region = context.registry.resolve(request.tensor)
    region.check(request.offset, request.size)
    if request.size:
        fill_data(region.struct(), request.value, request.size, request.offset)


def init_tensor(request: InitTensor, context: Context) -> None:
    """Let the buffer prepare a tensor: some devices clear the padding after quantised rows.

    The padding lies after the tensor's own bytes, so all that the device wants must be in bounds.
    """
    region = context.registry.resolve(request.tensor)
    struct = region.struct()
    buffer = region.buffer
    if context.device(buffer.device).alloc_size(struct) > buffer.size - region.offset:
        raise RefusedError("the padding of the tensor would be outside its buffer")
    status = buffer.buffer.init_tensor(struct)
    if status is not Status.SUCCESS or int(struct.record["extra"]) != 0:
        raise RefusedError("the device cannot prepare this tensor for use from elsewhere")
