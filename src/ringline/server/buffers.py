"""The buffers of one session: handles, virtual addresses, and how long their memory lives.

A client never sees an address of ours. A buffer's handle is random under the session's id; its
virtual base comes out of an arena where no two buffers of a session ever touch, and no address is
used twice, so a stale or mixed-up address hits nothing. Sizes are bytes.

Lifetime. A buffer may be freed on one connection while another one receives data into it (a peer's
transfer, say). Its handle is forgotten at once; its memory is given back when every connection that
was inside a command at that moment has finished that command. Connections say when they enter and
leave a command; that costs the usual case one set operation each and no lock.
"""

from __future__ import annotations

import secrets
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ringline.errors import RefusedError
from ringline.ggml.devices import Buffer
from ringline.server.limits import MOST_BUFFERS, MOST_REGIONS
from ringline.server.regions import Region, SessionBuffer, locate

__all__ = ["BufferTable", "Registry"]

_FIRST_BASE: Final = 1 << 36
#: bases are multiples of this: more than any device's alignment.
_PAGE: Final = 1 << 16
#: unused addresses after each buffer, so that "one past the end" is nobody's beginning.
_GAP: Final = 1 << 20
_LAST_BASE: Final = 1 << 62


class BufferTable(NamedTuple):
    """All buffers of a session as arrays sorted by handle, for checks of whole graphs."""

    handles: npt.NDArray[np.uint64]
    addresses: npt.NDArray[np.uint64]  # of ggml's buffers
    bases: npt.NDArray[np.uint64]  # virtual
    sizes: npt.NDArray[np.uint64]
    memory: npt.NDArray[np.uint64]  # real address of the first byte
    devices: npt.NDArray[np.int64]  # index of the device


@dataclass(slots=True)
class _Leaving:
    """A freed buffer and the connections that may still use its memory."""

    buffer: SessionBuffer
    users: set[int] = field(default_factory=set)


class Registry:
    """The buffers of one session, shared by the threads of its connections."""

    def __init__(self, session: int, *, most: int = 0) -> None:
        """An empty registry.

        Args:
            session: the session's id.
            most: bytes of all buffers together; 0: as much as the devices have.
        """
        self._session = session
        self._most = most
        #: guards _buffers, _promised, _leaving, _next_base, _table and every change of _regions.
        self._lock = threading.Lock()
        self._buffers: dict[int, SessionBuffer] = {}
        #: bytes for which buffers are being made now, by device.
        self._promised: Counter[int] = Counter()
        self._regions: dict[bytes, Region] = {}
        self._leaving: list[_Leaving] = []
        self._busy: set[int] = set()
        self._next_base = _FIRST_BASE
        self._table: BufferTable | None = None
        #: grows with each freed buffer: a graph built before is not used after.
        self.generation = 0

    def enter(self, visitor: int) -> None:
        """A connection begins a command: from now on it may use memory."""
        self._busy.add(visitor)

    def leave(self, visitor: int) -> None:
        """A connection has finished a command and uses no memory."""
        self._busy.discard(visitor)
        if self._leaving:
            self._settle(visitor)

    def make(
        self, device: int, size: int, total: int, allocate: Callable[[int], Buffer | None]
    ) -> SessionBuffer | None:
        """Make a buffer of `size` bytes on a device that has `total` in all.

        Linux promises more memory than there is, and kills who uses it: so it is refused here. The
        room is kept while `allocate` works, so that threads cannot share it.

        Returns:
            The buffer; None: the device has no room, or there are too many.

        Raises:
            RefusedError: the session has as much as it may have; names the limit and its flag.
        """
        with self._lock:
            self._check_room(device, size, total)
            self._promised[device] += size
        buffer = None
        try:
            buffer = allocate(size)
        finally:
            if buffer is None:
                with self._lock:
                    self._promised[device] -= size
        return None if buffer is None else self.add(device, buffer, promised=size)

    def _check_room(self, device: int, size: int, total: int) -> None:
        """As make() says. The caller holds the lock."""
        held = self._buffers.values()
        here = sum(one.size for one in held if one.device == device) + self._promised[device]
        used = sum(one.size for one in held) + self._promised.total()
        if self._most and size > self._most - used:
            raise RefusedError(
                f"{size} bytes beside the {used} that this session holds are more than the "
                f"{self._most} that it may hold (--most-memory)",
                rule="limit-memory",
            )
        if size > total - here:
            raise RefusedError(
                f"{size} bytes beside the {here} that this session holds are more than the {total} "
                f"of the device: give it fewer layers (-ts), or use a shorter context (-c)",
                rule="limit-memory",
            )
        if len(held) >= MOST_BUFFERS:
            text = f"this session has {MOST_BUFFERS} buffers already, more are not allowed"
            raise RefusedError(text, rule="limit-buffers")

    def add(self, device: int, buffer: Buffer, *, promised: int = 0) -> SessionBuffer | None:
        """Take a new buffer in; None (and the buffer closed) where there are too many.

        Args:
            device: where it is.
            buffer: ours from here on.
            promised: bytes that make() keeps for it.
        """
        memory = buffer.view(buffer.base, buffer.size) if buffer.host else None
        with self._lock:
            self._promised[device] -= promised
            base = self._next_base
            room = buffer.size <= _LAST_BASE - base and len(self._buffers) < MOST_BUFFERS
            if room:
                handle = self._new_handle()
                added = SessionBuffer(handle, device, buffer, base, buffer.size, memory)
                self._next_base = _round_up(base + buffer.size + _GAP)
                self._buffers[handle] = added
                self._table = None
                return added
        buffer.close()
        return None

    def __len__(self) -> int:
        """How many buffers there are."""
        return len(self._buffers)

    def get(self, handle: int) -> SessionBuffer:
        """The buffer of a handle.

        Raises:
            RefusedError: this session has no such buffer.
        """
        buffer = self._buffers.get(handle)
        if buffer is None:
            raise RefusedError(f"this session has no buffer {handle:#x}")
        return buffer

    def find(self, handle: int) -> SessionBuffer | None:
        """The buffer of a handle, or None."""
        return self._buffers.get(handle)

    def resolve(self, raw: bytes) -> Region:
        """The memory of a packed tensor record; the same few records come again each step.

        Raises:
            RefusedError: as regions.locate().
        """
        region = self._regions.get(raw)
        return self._locate(raw) if region is None else region

    def free(self, handle: int, visitor: int) -> None:
        """Forget a buffer; its memory goes when no other connection can be using it.

        Args:
            handle: which.
            visitor: the connection that asks; what it does itself is no reason to wait.

        Raises:
            RefusedError: this session has no such buffer.
        """
        with self._lock:
            buffer = self.get(handle)
            del self._buffers[handle]
            self._regions = {}
            self._table = None
            self.generation += 1
            leaving = _Leaving(buffer)
            # Listed before the users are read: one who leaves in between finds it there.
            self._leaving.append(leaving)
            leaving.users |= self._busy
        self._settle(visitor)

    def table(self) -> BufferTable:
        """All buffers as arrays."""
        with self._lock:
            if self._table is None:
                self._table = _tabulate(sorted(self._buffers.items()))
            return self._table

    def _locate(self, raw: bytes) -> Region:
        # Under the lock: free() must not clear _regions between our look-up and our entry.
        with self._lock:
            region = locate(raw, self.get)
            if len(self._regions) >= MOST_REGIONS:
                self._regions = {}
            self._regions[raw] = region
        return region

    def _settle(self, visitor: int) -> None:
        """`visitor` uses no memory of freed buffers any more; free those that nobody uses."""
        with self._lock:
            for leaving in self._leaving:
                leaving.users.discard(visitor)
            idle = [leaving.buffer for leaving in self._leaving if not leaving.users]
            self._leaving = [leaving for leaving in self._leaving if leaving.users]
        for buffer in idle:
            buffer.buffer.close()

    def _new_handle(self) -> int:
        while True:
            handle = self._session << 32 | secrets.randbits(32)
            if handle & 0xFFFFFFFF and handle not in self._buffers:
                return handle


def _round_up(address: int) -> int:
    return -(-address // _PAGE) * _PAGE


def _tabulate(items: list[tuple[int, SessionBuffer]]) -> BufferTable:
    def column(values: list[int]) -> npt.NDArray[np.uint64]:
        return np.array(values, np.uint64)

    buffers = [buffer for _, buffer in items]
    return BufferTable(
        handles=column([buffer.handle for buffer in buffers]),
        addresses=column([buffer.buffer.address for buffer in buffers]),
        bases=column([buffer.base for buffer in buffers]),
        sizes=column([buffer.size for buffer in buffers]),
        memory=column([buffer.buffer.base for buffer in buffers]),
        devices=np.array([buffer.device for buffer in buffers], np.int64),
    )
