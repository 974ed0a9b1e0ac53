"""A connected socket as a stream of bytes with deadlines.

One reader and one writer at a time. The socket is non-blocking and every wait is a poll() with a
limit, so that a writer can go on reading meanwhile: two ends that both only write would block each
other for ever. Small reads come out of a buffer (one recv serves many messages), bulk reads go
straight to their final address. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Final

from ringline.errors import DeadlineError, NetworkError, TlsError
from ringline.interrupts import LOOK, deliver_late
from ringline.net.deadline import Deadline
from ringline.net.tls import TlsSocket, in_words

__all__ = ["Closed", "Stream", "no_delay"]

_BUFFER: Final = 64 * 1024
#: the kernel takes at most this many parts in one sendmsg (IOV_MAX).
_MOST_PARTS: Final = 1024
#: joining small parts costs less than describing each to the kernel.
_SMALL: Final = 16 * 1024

Bytes = bytes | bytearray | memoryview


class Closed(NetworkError):
    """The other end closed the connection; `clean` if that was between two messages."""

    def __init__(self, cause: str, *, peer: str, clean: bool = False) -> None:
        self.clean = clean
        super().__init__(cause, peer=peer)


class Stream:
    """Reads and writes whole pieces.

    `peer` names the other end in errors; `silence` is the longest wait for the next byte of
    something that has begun. `slowest` is how many bytes a second must move on top of that, in
    bulk; 0: any trickle will do.
    """

    def __init__(self, sock: socket.socket | TlsSocket, *, peer: str, silence: float) -> None:
        if isinstance(sock, socket.socket):
            sock.setblocking(False)
            no_delay(sock)
        self.peer = peer
        self.silence = silence
        self.slowest = 0
        self._socket = sock
        self._reading = select.poll()
        self._reading.register(sock, select.POLLIN)
        self._both = select.poll()
        self._both.register(sock, select.POLLIN | select.POLLOUT)
        self._writing = select.poll()
        self._writing.register(sock, select.POLLOUT)
        self._ending = select.poll()
        self._ending.register(sock, select.POLLRDHUP)
        self._buffer = bytearray(_BUFFER)
        self._view = memoryview(self._buffer)
        self._start = self._end = 0

    def fileno(self) -> int:
        """The socket's file descriptor."""
        return self._socket.fileno()

    def buffered(self) -> int:
        """How many received bytes wait in the buffer."""
        return self._end - self._start

    def read(self, size: int, *, idle: bool = False) -> bytes:
        """Read exactly `size` bytes, at most 64 KiB.

        Args:
            size: how many.
            idle: wait for the first byte as long as it takes (between two messages).

        Raises:
            Closed: the connection ended. DeadlineError: nothing came for `silence` seconds.
        """
        if self._end - self._start < size:
            self._fill(size, idle=idle)
        start = self._start
        self._start = start + size
        return bytes(self._view[start : self._start])

    def read_into(self, target: memoryview) -> None:
        """Fill `target` (format B), from the buffer first, then straight from the socket.

        Raises:
            Closed, DeadlineError: as read().
        """
        done = self._take(target)
        whole = self._whole(len(target) - done)
        while done < len(target):
            done += self._receive(target[done:], clean=False)
            if whole.passed() and done < len(target):
                raise self._too_slow("sent", whole)

    def skip(self, size: int) -> None:
        """Read and forget `size` bytes.

        Raises:
            Closed, DeadlineError: as read().
        """
        while size:
            part = min(size, _BUFFER)
            self.read(part)
            size -= part

    def read_available(self, target: memoryview) -> int:
        """Read into `target` what is there without waiting; returns how many bytes, maybe 0.

        Raises:
            Closed: the connection ended.
        """
        done = self._take(target)
        if done:
            return done
        try:
            count = self._socket.recv_into(target)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(error) from None
        if count == 0:
            raise Closed("the connection was closed", peer=self.peer)
        return count

    def peek(self, most: int, seconds: float) -> bytes:
        """What comes next, at most `most` bytes, left where it is; b"" where nothing comes in time.

        Raises:
            Closed: the connection ended.
        """
        if not self.buffered() and self.readable(seconds):
            self._start = 0
            self._end = 0
            self._end = self._receive(self._view, clean=True)
        return bytes(self._view[self._start : min(self._end, self._start + most)])

    def readable(self, seconds: float) -> bool:
        """Whether something can be read within `seconds`."""
        held = isinstance(self._socket, TlsSocket) and self._socket.pending() > 0
        return held or self.buffered() > 0 or bool(self._reading.poll(seconds * 1000))

    def hung_up(self) -> bool:
        """Whether the other end has closed its direction, read or unread bytes notwithstanding."""
        return bool(self._ending.poll(0))

    def send(self, parts: Sequence[Bytes], reader: Callable[[], None] | None = None) -> None:
        """Send all parts, in order.

        Args:
            parts: what to send.
            reader: called when bytes can be read while we cannot write; None does not look.

        Raises:
            NetworkError: the connection broke. DeadlineError: the peer took nothing for `silence`,
                or too little in all.
        """
        pending = self.try_send(parts)
        whole = self._whole(sum(map(len, pending))) if pending else None
        while pending:
            self._wait_writable(reader)
            pending = self.try_send(pending)
            if whole is not None and pending and whole.passed():
                raise self._too_slow("took", whole)

    def try_send(self, parts: Sequence[Bytes]) -> Sequence[Bytes]:
        """Send as much as the kernel takes now; returns what is left, in order.

        Raises:
            NetworkError: the connection broke.
        """
        pending = _compact(parts)
        while pending:
            try:
                sent = self._socket.sendmsg(pending[:_MOST_PARTS])
            except BlockingIOError:
                break
            except OSError as error:
                raise self._lost(error) from None
            pending = _rest(pending, sent)
        return pending

    def close(self) -> None:
        """Close the socket; may be called again."""
        with contextlib.suppress(OSError):
            self._socket.close()

    def shutdown(self) -> None:
        """End both directions, so that a thread that waits on this stream wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def _take(self, target: memoryview) -> int:
        size = min(self._end - self._start, len(target))
        if size:
            target[:size] = self._view[self._start : self._start + size]
            self._start += size
        return size

    def _fill(self, size: int, *, idle: bool) -> None:
        if size > _BUFFER:
            raise ValueError(f"read({size}) is for small pieces; use read_into")
        have = self._end - self._start
        self._buffer[:have] = self._buffer[self._start : self._end]
        self._start, self._end = 0, have
        while self._end < size:
            waiting = idle and self._end == 0
            self._end += self._receive(self._view[self._end :], clean=self._end == 0, idle=waiting)

    def _receive(self, target: memoryview, *, clean: bool, idle: bool = False) -> int:
        while True:
            # Look first, wait then: what is there already costs one call, and a look in vain costs
            # only time that would have been spent waiting.
            try:
                count = self._socket.recv_into(target)
            except BlockingIOError:
                self._wait_readable(None if idle else self.silence)
                continue
            except OSError as error:
                raise self._lost(error) from None
            if count == 0:
                raise Closed("the connection was closed", peer=self.peer, clean=clean)
            return count

    def _wait_readable(self, seconds: float | None) -> None:
        deadline = Deadline(seconds)
        while not self._reading.poll(_slice_ms(deadline)):
            deliver_late()
            if deadline.passed():
                raise DeadlineError(
                    f"nothing came for {self.silence:g} s", peer=self.peer, seconds=self.silence
                )

    def _wait_writable(self, reader: Callable[[], None] | None) -> None:
        deadline = Deadline(self.silence)
        poller = self._writing if reader is None else self._both
        while True:
            events = poller.poll(_slice_ms(deadline))
            if not events:
                deliver_late()
                if deadline.passed():
                    raise DeadlineError(
                        f"took no data for {self.silence:g} s", peer=self.peer, seconds=self.silence
                    )
                continue
            if reader is not None and events[0][1] & select.POLLIN:
                reader()
            if events[0][1] & ~select.POLLIN:
                return

    def _whole(self, size: int) -> Deadline:
        """When `size` bytes must have moved."""
        return Deadline(self.silence + size / self.slowest if self.slowest else None)

    def _too_slow(self, did: str, whole: Deadline) -> DeadlineError:
        seconds = whole.seconds or 0.0
        cause = f"{did} too little data in {seconds:g} s"
        return DeadlineError(cause, peer=self.peer, seconds=seconds)

    def _lost(self, error: OSError) -> NetworkError:
        if isinstance(error, ssl.SSLError):  # a certificate is refused after the handshake
            return TlsError(in_words(error), peer=self.peer)
        return NetworkError(f"the connection was lost ({error.strerror or error})", peer=self.peer)


def no_delay(sock: socket.socket) -> None:
    """Send small things at once."""
    with contextlib.suppress(OSError):  # a socketpair has no TCP options
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def _slice_ms(deadline: Deadline) -> int | None:
    """How long to poll before the next look for an interrupt."""
    left = deadline.left_ms()
    return None if left is None else min(left, int(LOOK * 1000))


def _compact(parts: Sequence[Bytes]) -> list[Bytes]:
    """Join neighbouring small parts; leave bulk where it is."""
    compact: list[Bytes] = []
    small: list[Bytes] = []
    for part in parts:
        if len(part) > _SMALL:
            if small:
                compact.append(b"".join(small))
                small = []
            compact.append(part)
        elif len(part):
            small.append(part)
    if small:
        compact.append(small[0] if len(small) == 1 else b"".join(small))
    return compact


def _rest(parts: list[Bytes], sent: int) -> list[Bytes]:
    for index, part in enumerate(parts):
        if sent < len(part):
            return [memoryview(part)[sent:], *parts[index + 1 :]]
        sent -= len(part)
    return []
