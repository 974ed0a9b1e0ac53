"""Where data from other nodes and the commands that wait for them meet, by ticket.

A RECV_TENSOR waits in its client's own stream, so what it writes is in order with everything there.
If it is first, the data go from the network straight to their final address; if the data are first,
they wait here, within bounds. A ticket is used once. Who waits is told at once when the data cannot
come: the peer's connection broke, or the client gave the ticket up. Sizes are bytes, times seconds.

An entry's life:   WAITING (a command waits) -> FILLING (data arrive) -> READY, or FAILED
                   FILLING (data are early)  -> READY -> taken, or expired
While data arrive at their final address the command does not give up, whatever its deadline says:
nothing may write there after it. A ticket whose command has failed is remembered for a while: data
that still come for it would take room, and nobody would fetch them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from ringline.errors import RefusedError, TransferError
from ringline.net.deadline import Deadline
from ringline.server.limits import EXPIRY, MOST_INBOX, MOST_TICKETS

__all__ = ["Inbox"]

#: seconds between two looks whether the client that waits is still there.
_LOOK = 0.5
Data = bytearray | None


class _State(Enum):
    WAITING = auto()
    FILLING = auto()
    READY = auto()
    FAILED = auto()


@dataclass(slots=True)
class _Entry:
    size: int
    state: _State
    claimed: bool
    place: memoryview | None = None
    data: Data = None
    cause: str = ""
    born: float = field(default_factory=time.monotonic)

    def fail(self, cause: str) -> None:
        self.state, self.cause = _State.FAILED, cause


class Inbox:
    """The tickets of one session."""

    def __init__(self, *, most_bytes: int = MOST_INBOX, most_tickets: int = MOST_TICKETS) -> None:
        """Let early data take `most_bytes` and `most_tickets` at the most."""
        self._most_bytes = most_bytes
        self._most_tickets = most_tickets
        #: guards everything below; never held while the network is used.
        self._changed = threading.Condition()
        self._entries: dict[bytes, _Entry] = {}
        self._used = 0

    def receive(
        self,
        ticket: bytes,
        size: int,
        place: memoryview | None,
        *,
        deadline: Deadline,
        gone: Callable[[], bool],
    ) -> Data:
        """Wait for the data of a ticket.

        Args:
            ticket: which.
            size: how many bytes there must be.
            place: where they go; None where only this thread can write.
            deadline: how long to wait for the first of them.
            gone: whether whoever asked for this has left; looked at now and then.

        Returns:
            The data, or None where they lie in `place` already.

        Raises:
            TransferError: nothing came, or something else; names the ticket.
            RefusedError: the ticket is nobody's, or another command waits for it.
        """
        with self._changed:
            entry = self._claim(ticket, size, place)
            self._wait(entry, deadline, gone)
            if entry.state is not _State.FAILED and entry.size != size:
                entry.fail(f"{entry.size} bytes came where {size} were expected")
            data = self._release(entry)
            del self._entries[ticket]
            if entry.state is _State.FAILED:
                self.lost(ticket, entry.cause)
            self._changed.notify_all()
        if entry.state is _State.FAILED:
            raise TransferError(f"nothing came under ticket {ticket.hex()}: {entry.cause}")
        return data

    def offer(self, ticket: bytes, size: int, deadline: Deadline) -> memoryview | None:
        """Data begin to arrive: where to put them; None: read and forget them.

        Waits for room where they are early and the inbox is full. After a place was given, tell
        arrived() or lost().
        """
        with self._changed:
            self._expire()
            while True:
                entry = self._entries.get(ticket)
                if entry is not None:
                    return self._fill_waiting(entry, size)
                if not any(ticket) or size > self._most_bytes:
                    self._refuse_early(ticket, size)
                    return None
                if self._has_room(size):
                    break
                if deadline.passed():
                    self._refuse_early(ticket, size)
                    return None
                self._changed.wait(min(_LOOK, deadline.left() or _LOOK))
            data = bytearray(size)
            self._used += size
            self._entries[ticket] = _Entry(size, _State.FILLING, claimed=False, data=data)
            return memoryview(data)

    def arrived(self, ticket: bytes) -> None:
        """All data of an offered ticket lie where they were put."""
        with self._changed:
            entry = self._entries.get(ticket)
            if entry is not None and entry.state is _State.FILLING:
                entry.state = _State.READY
                self._changed.notify_all()

    def lost(self, ticket: bytes, cause: str) -> None:
        """The data of a ticket will not come, or not whole: tell who waits, now or later."""
        with self._changed:
            entry = self._entries.get(ticket)
            if entry is None:
                if len(self._entries) < self._most_tickets:
                    entry = self._entries[ticket] = _Entry(0, _State.FAILED, claimed=False)
                    entry.fail(cause)
            elif entry.state in (_State.WAITING, _State.FILLING):
                entry.fail(cause)
                self._release(entry)
            self._changed.notify_all()

    def void(self, ticket: bytes) -> None:
        """The client gave a ticket up: forget early data; who waits waits for what has begun."""
        with self._changed:
            entry = self._entries.get(ticket)
            early = (_State.FILLING, _State.READY)
            if entry is not None and entry.state in early and not entry.claimed:
                self._release(entry)
                del self._entries[ticket]  # what still arrives of it is nobody's
                entry = None
            if entry is None or entry.state is _State.WAITING:
                self.lost(ticket, "the client gave it up")

    def _claim(self, ticket: bytes, size: int, place: memoryview | None) -> _Entry:
        """The entry of a ticket, from now on waited for."""
        if not any(ticket):
            raise RefusedError("ticket 0 is for probes, nothing can be received under it")
        entry = self._entries.get(ticket)
        if entry is None:
            entry = _Entry(size, _State.WAITING, claimed=True, place=place)
            self._entries[ticket] = entry
            self._changed.notify_all()  # its data may be waiting for room
        elif entry.claimed:
            raise RefusedError(f"ticket {ticket.hex()} is waited for already")
        entry.claimed = True
        return entry

    def _release(self, entry: _Entry) -> Data:
        """Take an entry's data out; they count no more."""
        data, entry.data = entry.data, None
        self._used -= len(data or b"")
        return data

    def _wait(self, entry: _Entry, deadline: Deadline, gone: Callable[[], bool]) -> None:
        while entry.state in (_State.WAITING, _State.FILLING):
            left = deadline.left()
            if entry.state is _State.WAITING and (deadline.passed() or gone()):
                entry.fail(
                    f"no data within {deadline.seconds:g} s" if deadline.passed() else "client left"
                )
                return
            self._changed.wait(_LOOK if left is None else max(0.001, min(_LOOK, left)))

    def _fill_waiting(self, entry: _Entry, size: int) -> memoryview | None:
        if entry.state is not _State.WAITING:
            return None  # a ticket is used once
        if entry.size != size:
            entry.fail(f"{size} bytes came where {entry.size} were expected")
            self._changed.notify_all()
            return None
        place = entry.place
        if place is None:
            entry.data = bytearray(size)
            self._used += size
            place = memoryview(entry.data)
        entry.state = _State.FILLING
        return place

    def _refuse_early(self, ticket: bytes, size: int) -> None:
        """No room: whoever waits for this later is told; ticket 0 is a probe's and nobody's."""
        if any(ticket):
            self.lost(ticket, f"the inbox has no room for {size} bytes that came early")

    def _has_room(self, size: int) -> bool:
        return self._used + size <= self._most_bytes and len(self._entries) < self._most_tickets

    def _expire(self) -> None:
        """Forget what nobody has claimed for a long time."""
        oldest = time.monotonic() - EXPIRY
        for ticket, entry in list(self._entries.items()):
            done = entry.state in (_State.READY, _State.FAILED)
            if done and not entry.claimed and entry.born < oldest:
                del self._entries[ticket]
                self._release(entry)
