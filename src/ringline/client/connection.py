"""One connection to a node: commands queue up, are flushed together, replies come in order.

Commands without a reply are only queued; the queue goes out in one piece where a reply is needed,
at flush(), or when it has grown. Reads may be queued too (expect into memory, drain() waits).
After the first failure the connection is broken for good: every call raises that same error.

Lock: `_lock` guards the queue, the expected replies and the stream. It is held across the wait for
a reply, since one caller's reply stands behind another's; nothing calls out while holding it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from dataclasses import dataclass

from ringline.client.counters import Traffic
from ringline.errors import DeadlineError, NetworkError, PeerError, ProtocolError, RefusedError
from ringline.net.stream import Stream
from ringline.settings import debug_level
from ringline.wire.commands import Command
from ringline.wire.frames import (
    ERROR_HEADER,
    ERROR_SIZE,
    MOST_ERROR_TEXT,
    REPLY_HEADER,
    REQUEST_HEADER,
)

__all__ = ["BULK", "Connection"]

_log = logging.getLogger(__name__)

#: a queue of this many bytes is sent at once: the node may begin, and memory stays bounded.
_MOST_QUEUED = 1 << 20
#: a part of this size is not copied into the queue but sent from where it lies.
BULK = 64 * 1024

Bytes = bytes | bytearray | memoryview


@dataclass(slots=True)
class _Expected:
    """A reply that is on its way; `size` None means any size up to `most`."""

    command: Command
    number: int  # how many commands had been sent with this one
    size: int | None
    target: memoryview | None
    most: int = 0
    done: int = -1  # bytes received; -1: the header has not come
    body: bytes = b""


class Connection:
    """The commands of one client to one node. `level` is what both ends speak, 0 for stock."""

    def __init__(self, stream: Stream, *, traffic: Traffic) -> None:
        self.peer = stream.peer
        self.level = 0
        self._stream = stream
        self._traffic = traffic
        self._lock = threading.RLock()
        self._queue: list[Bytes] = []
        self._queued = 0
        self._expected: deque[_Expected] = deque()
        self._since: list[str] = []  # names of the commands not known to be done
        self._sent = self._done = 0  # numbers of the last command sent, and known to be done
        self._late: RefusedError | None = None  # came while a message was half sent
        self._error: NetworkError | PeerError | None = None
        self._debug = debug_level()

    @property
    def dirty(self) -> bool:
        """Whether a command may not have been executed yet: something came after the last reply."""
        return self._sent > self._done

    def post(self, command: Command, *parts: Bytes) -> None:
        """Queue a command without reply. Parts of 64 KiB and more are sent before this returns.

        Raises:
            NetworkError, PeerError: the connection is or gets broken.
        """
        with self._lock:
            self._check()
            self._add(command, parts)
            if self._queued >= _MOST_QUEUED or any(len(part) >= BULK for part in parts):
                self._flush()

    def call(self, command: Command, *parts: Bytes, size: int | None, most: int = 0) -> bytes:
        """Send a command and wait for its reply.

        Args:
            command: which.
            parts: the body.
            size: bytes of the reply, header excluded; None: any size up to `most`.
            most: see size.

        Raises:
            RefusedError: the node said no and why. NetworkError, PeerError: the connection broke.
        """
        with self._lock:
            self._check()
            self._add(command, parts)
            expected = _Expected(command, self._sent, size, None, most)
            self._expected.append(expected)
            self._flush()
            self._receive_until(expected)
            return expected.body

    def read(self, command: Command, *parts: Bytes, target: memoryview) -> None:
        """Send a command whose reply fills `target`, and wait for it.

        Raises:
            RefusedError, NetworkError, PeerError: as call().
        """
        with self._lock:
            self.expect(command, *parts, target=target)
            expected = self._expected[-1]
            self._flush()
            self._receive_until(expected)

    def expect(self, command: Command, *parts: Bytes, target: memoryview) -> None:
        """Queue a command whose reply will fill `target`; drain() waits for it.

        Raises:
            NetworkError, PeerError: the connection is broken.
        """
        with self._lock:
            self._check()
            self._add(command, parts)
            self._expected.append(_Expected(command, self._sent, len(target), target))

    def flush(self) -> None:
        """Send what is queued.

        Raises:
            NetworkError, PeerError: the connection is or gets broken.
        """
        with self._lock:
            self._check()
            self._flush()

    def drain(self) -> None:
        """Send what is queued and wait for all replies that are on their way.

        Raises:
            RefusedError, NetworkError, PeerError: as call().
        """
        with self._lock:
            self._check()
            self._flush()
            while self._expected:
                self._receive_until(self._expected[-1])

    def close(self) -> None:
        """Send what is queued if that is possible, and close; may be called again."""
        with self._lock:
            if self._error is None:
                try:
                    self._flush()
                except (NetworkError, PeerError) as error:
                    _log.debug("closing: %s", error)
                self._error = NetworkError("the connection was closed by us", peer=self.peer)
            self._stream.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _add(self, command: Command, parts: tuple[Bytes, ...]) -> None:
        size = sum(map(len, parts))
        self._queue.append(REQUEST_HEADER.pack(command, size))
        self._queue.extend(parts)
        self._queued += REQUEST_HEADER.size + size
        self._since.append(command.name)
        self._sent += 1
        self._traffic.sent(command.name, REQUEST_HEADER.size + size)
        if self._debug:
            _log.debug("%s <- %s %d bytes", self.peer, command.name, size)

    def _flush(self) -> None:
        if not self._queue:
            return
        parts, self._queue, self._queued = self._queue, [], 0
        # While replies are on their way we must go on reading: a node that is stuck in sending one
        # reads nothing, and both ends would wait for each other.
        reader = self._receive_some if self._expected else None
        try:
            self._stream.send(parts, reader)
        except NetworkError as error:
            raise self._broken(error) from None
        late, self._late = self._late, None
        if late is not None:
            raise late

    def _receive_until(self, last: _Expected) -> None:
        """Receive replies, in order, up to and including `last`."""
        while True:
            head = self._expected[0]
            try:
                self._receive(head)
            except NetworkError as error:
                raise self._broken(error) from None
            if head is last:
                return

    def _receive(self, head: _Expected) -> None:
        started = time.perf_counter()
        if head.done < 0:
            self._receive_header(head)
        if head.target is None:
            head.body = self._stream.read(head.size or 0)
        elif head.done < len(head.target):
            self._stream.read_into(head.target[head.done :])
        self._finish(head)
        if self._debug > 1:
            _log.debug("%s -> %s in %.6f s", self.peer, head.command.name, _since(started))

    def _receive_some(self) -> None:
        """Called while a send waits: take what has come of the first reply, without waiting."""
        if not self._expected:
            return
        head = self._expected[0]
        try:
            if head.done < 0:
                self._receive_header(head)
        except RefusedError as error:  # raising now would leave a message half sent
            self._late = error
            return
        if head.target is None:
            return  # small: read after the send
        if head.done < len(head.target):
            head.done += self._stream.read_available(head.target[head.done :])
        if head.done == len(head.target):
            self._finish(head)

    def _finish(self, head: _Expected) -> None:
        self._expected.popleft()
        self._traffic.received(REPLY_HEADER.size + (head.size or 0))
        self._known_done(head)

    def _known_done(self, head: _Expected) -> None:
        """A reply proves that all commands up to its own have been executed, in order."""
        del self._since[: head.number - self._done]
        self._done = head.number

    def _receive_header(self, head: _Expected) -> None:
        (size,) = REPLY_HEADER.unpack(self._stream.read(REPLY_HEADER.size))
        if size == ERROR_SIZE and self.level > 0:
            raise self._refused(head)
        wanted = head.size if head.size is not None else f"at most {head.most}"
        if size != head.size and not (head.size is None and size <= head.most):
            cause = f"a reply of {size} bytes where {wanted} were expected"
            raise self._broken(ProtocolError(cause, peer=self.peer, command=head.command.name))
        head.done = 0
        head.size = size

    def _refused(self, head: _Expected) -> RefusedError:
        """Read an error frame. The node is well and goes on, but what was sent may be lost."""
        code, length = ERROR_HEADER.unpack(self._stream.read(ERROR_HEADER.size))
        text = self._stream.read(min(length, MOST_ERROR_TEXT)).decode("utf-8", "replace")
        self._expected.popleft()
        since = self._since[: head.number - self._done - 1]
        self._known_done(head)
        self._traffic.received(REPLY_HEADER.size + ERROR_HEADER.size + length)
        return RefusedError(text, peer=self.peer, command=head.command.name, since=since, code=code)

    def _broken(self, error: NetworkError | PeerError) -> NetworkError | PeerError:
        """Make an error say what was under way, and keep it."""
        if self._error is None:
            waiting = self._expected[0].command.name if self._expected else None
            self._error = self._named(error, error.command or waiting)
            self._queue, self._queued = [], 0
            self._expected.clear()
        return self._error

    def _named(
        self, error: NetworkError | PeerError, command: str | None
    ) -> NetworkError | PeerError:
        peer, cause, since = self.peer, error.cause, self._since[:]
        if isinstance(error, DeadlineError):
            seconds = error.seconds
            return DeadlineError(cause, peer=peer, seconds=seconds, command=command, since=since)
        if isinstance(error, NetworkError):
            return NetworkError(cause, peer=peer, command=command, since=since)
        return ProtocolError(cause, peer=peer, command=command, since=since)


def _since(started: float) -> float:
    return time.perf_counter() - started
