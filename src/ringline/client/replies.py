"""Replies on their way over one connection: in order, each for the thread that asked.

Whoever waits and finds nobody reading becomes the reader and receives whatever comes next, for
itself or for others, and wakes them. So a thread that waits for its result does not hold up another
one's sends, nor the other way round.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from ringline.errors import (
    DeadlineError,
    NetworkError,
    ProtocolError,
    RefusedError,
    RemoteError,
    TransferError,
)
from ringline.interrupts import LOOK, deliver_late
from ringline.net.deadline import Deadline
from ringline.net.stream import Stream
from ringline.wire.commands import Command
from ringline.wire.frames import (
    ERROR_HEADER,
    ERROR_SIZE,
    MOST_ERROR_TEXT,
    REPLY_HEADER,
    ErrorCode,
)

__all__ = ["Expected", "Replies"]


@dataclass(slots=True, eq=False)
class Expected:
    """A reply that is on its way; `size` None means any size up to `most`.

    `number` counts the commands sent up to its own, `owner` is the thread that waits for it.
    """

    command: Command
    number: int
    size: int | None
    target: memoryview | None
    most: int = 0
    body: bytes = b""
    done: int = -1  # bytes of a target received; -1: the header has not come
    finished: bool = False
    error: RemoteError | None = None
    owner: int = field(default_factory=threading.get_ident)


class Replies:
    """The receiving half of a connection.

    `finish` is called under the lock when a reply (or the error in its place) has come whole;
    `lost` makes an error say what was under way and fails everything that is expected.
    """

    def __init__(
        self,
        stream: Stream,
        lock: threading.RLock,
        *,
        finish: Callable[[Expected, int], None],
        lost: Callable[[RemoteError], RemoteError],
    ) -> None:
        self._stream = stream
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._finish = finish
        self._lost = lost
        self._reading = False
        self.queue: deque[Expected] = deque()
        self.extended = False
        #: called about twice a second while a reply is waited for; may raise.
        self.watch: Callable[[float], None] = lambda waited: None

    def wait(self, wanted: Expected) -> None:
        """Return when `wanted` has come.

        Raises:
            RefusedError: the node refused. NetworkError, PeerError: the connection broke.
        """
        while True:
            with self._lock:
                if wanted.finished:
                    break
                if self._reading:
                    self._changed.wait(LOOK)
                    deliver_late()
                    continue
                self._reading = True
                head = self.queue[0]
            try:
                self._receive(head)
            except RemoteError as error:  # another node's too, found while this one is waited for
                self._lost(error)
            except BaseException:  # half a reply may have been read, into memory that C will free
                self._lost(NetworkError("the wait for it was interrupted", peer=self._stream.peer))
                raise
            finally:
                self._stop_reading()
        if wanted.error is not None:
            raise wanted.error

    def take_some(self) -> None:
        """Take what has come of the next reply, without waiting for more."""
        with self._lock:
            if self._reading or not self.queue or not self._stream.readable(0):
                return
            self._reading = True
            head = self.queue[0]
        try:
            self._receive_some(head)
        finally:
            self._stop_reading()

    def fail_all(self, error: RemoteError) -> None:
        """Nothing will come any more."""
        with self._lock:
            for expected in self.queue:
                expected.error, expected.finished = error, True
            self.queue.clear()
            self._changed.notify_all()

    def _stop_reading(self) -> None:
        with self._lock:
            self._reading = False
            self._changed.notify_all()

    def _receive(self, head: Expected) -> None:
        """Receive the next reply whole, whoever waits for it."""
        if head.done < 0:
            self._await_first_byte()
            self._header(head)
        if not head.finished:
            if head.target is None:
                head.body = self._stream.read(head.size or 0)
            elif head.done < len(head.target):
                self._stream.read_into(head.target[head.done :])
            self._complete(head)

    def _receive_some(self, head: Expected) -> None:
        if head.done < 0:
            self._header(head)
        if head.finished or head.target is None:
            return  # small ones are read after the send
        if head.done < len(head.target):
            head.done += self._stream.read_available(head.target[head.done :])
        if head.done == len(head.target):
            self._complete(head)

    def _await_first_byte(self) -> None:
        """A graph may be computing: wait long, but look round now and then."""
        limit = self._stream.silence
        deadline = Deadline(limit)
        while not self._stream.readable(min(LOOK, limit)):
            if deadline.passed():
                cause = f"nothing came for {limit:g} s"
                raise DeadlineError(cause, peer=self._stream.peer, seconds=limit)
            deliver_late()
            self.watch(limit - (deadline.left() or 0.0))

    def _header(self, head: Expected) -> None:
        (size,) = REPLY_HEADER.unpack(self._stream.read(REPLY_HEADER.size))
        if size == ERROR_SIZE and self.extended:
            self._error_frame(head)
            return
        wanted = head.size if head.size is not None else f"at most {head.most}"
        if size != head.size and not (head.size is None and size <= head.most):
            cause = f"a reply of {size} bytes where {wanted} were expected"
            self._lost(ProtocolError(cause, peer=self._stream.peer, command=head.command.name))
            return
        head.done, head.size = 0, size

    def _error_frame(self, head: Expected) -> None:
        """The node is well and goes on, but what was sent before may not have been done."""
        code, length = ERROR_HEADER.unpack(self._stream.read(ERROR_HEADER.size))
        text = self._stream.read(min(length, MOST_ERROR_TEXT)).decode("utf-8", "replace")
        kind = TransferError if code == ErrorCode.TRANSFER else RefusedError
        peer, command = self._stream.peer, head.command.name
        head.error = kind(text, peer=peer, command=command, code=code)
        self._complete(head, ERROR_HEADER.size + length)

    def _complete(self, head: Expected, size: int | None = None) -> None:
        with self._lock:
            if not head.finished:  # the connection may have been lost meanwhile
                self.queue.popleft()
                head.finished = True
                self._finish(head, REPLY_HEADER.size + (head.size or 0 if size is None else size))
            self._changed.notify_all()
