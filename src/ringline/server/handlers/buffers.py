"""Commands about buffers: make, name, fill, give back."""

from __future__ import annotations

import logging

from ringline.ggml.devices import Buffer
from ringline.server.context import Context
from ringline.server.limits import MOST_HEAP
from ringline.server.log import tell
from ringline.wire.messages import AllocBuffer, BufferClear, BufferGetBase, FreeBuffer, Message

_log = logging.getLogger(__name__)
_NO_ROOM = AllocBuffer.Reply(0, 0)


def alloc_buffer(request: AllocBuffer, context: Context) -> Message:
    """Make a buffer; handle 0 where the device has no room.

    A small one comes from the heap, where our own data has been; it is cleared.

    Raises:
        RefusedError: it is more than the session may hold. A stock client is told by handle 0.
    """
    device = context.device(request.device)
    _, total = device.memory()

    def allocate(size: int) -> Buffer | None:
        buffer = device.alloc_buffer(size)
        if buffer and buffer.host and buffer.size <= MOST_HEAP:
            buffer.clear(0)
        return buffer

    added = context.registry.make(request.device, request.size, total, allocate)
    if added is None:
        text = "no room for %d bytes on device %s"
        facts = {"size": request.size, "device": device.name}
        tell(_log, logging.WARNING, "no_room", text, request.size, device.name, **facts)
        return _NO_ROOM
    return AllocBuffer.Reply(added.handle, added.size)


def buffer_get_base(request: BufferGetBase, context: Context) -> Message:
    """Where a buffer begins, in the session's own address space."""
    return BufferGetBase.Reply(context.registry.get(request.handle).base)


def buffer_clear(request: BufferClear, context: Context) -> None:
    """Fill a buffer with one byte value."""
    context.registry.get(request.handle).buffer.clear(request.value)


def free_buffer(request: FreeBuffer, context: Context) -> None:
    """Give a buffer back; no stored graph of the session may be computed after that."""
    context.registry.free(request.handle, context.visitor)
