"""A relay: bytes between a TLS connection and the plain socket that the rest of the node knows.

It is a process of its own for each connection, so that encrypting one client's data holds up nobody
else and whatever happens in here ends this connection only. What it holds is bounded: it reads
where the other side takes, so a slow reader slows its writer down as on one connection. The end of
one direction is passed on, and the other one goes on. While the session lives it sets the
deadlines; when it has gone, what it said last has a while to get to the client. Sizes are bytes,
times seconds.
"""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Callable, Sequence
from typing import Final

from ringline import settings
from ringline.net.deadline import Deadline
from ringline.net.tls import TlsSocket
from ringline.server.limits import FAREWELL_TIMEOUT

__all__ = ["relay"]

_SIZE: Final = 256 * 1024
_BROKEN: Final = select.POLLHUP | select.POLLERR

Bytes = bytes | bytearray | memoryview


class _Inside:
    """The node's end. A session that has gone reads as ended, and takes and forgets the rest."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket = sock
        self.gone = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def recv_into(self, target: memoryview) -> int:
        try:
            return self._socket.recv_into(target)
        except BlockingIOError:
            raise
        except OSError:
            self.gone = True
            return 0

    def sendmsg(self, parts: Sequence[Bytes]) -> int:
        if not self.gone:
            try:
                return self._socket.sendmsg(parts)
            except BlockingIOError:
                raise
            except OSError:
                self.gone = True
        return sum(map(len, parts))

    def end_writing(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


class _Way:
    """One direction. `ended`: nothing more comes."""

    def __init__(
        self, source: TlsSocket | _Inside, sink: TlsSocket | _Inside, end: Callable[[], None]
    ) -> None:
        self._source = source
        self._sink = sink
        self._end = end
        self._buffer = memoryview(bytearray(_SIZE))
        self._waiting = self._buffer[:0]
        self.ended = False

    @property
    def stuck(self) -> bool:
        """Whether it holds something that its sink does not take now."""
        return len(self._waiting) > 0

    @property
    def reads(self) -> bool:
        """Whether it would take something from its source."""
        return not self.ended and not self.stuck

    def move(self) -> None:
        """Move one buffer's worth, as far as that goes now.

        Raises:
            OSError: the TLS connection is lost.
        """
        with contextlib.suppress(BlockingIOError):
            if self.reads:
                count = self._source.recv_into(self._buffer)
                self._waiting = self._buffer[:count]
                self.ended = not count
                if self.ended:
                    self._end()
            while self._waiting:
                self._waiting = self._waiting[self._sink.sendmsg([self._waiting]) :]


def relay(tls: TlsSocket, inner: socket.socket) -> None:
    """Relay until both directions have ended or the connection is lost.

    Args:
        tls: after its handshake; ours to close.
        inner: the node's end; ours to close.
    """
    inside = _Inside(inner)
    with contextlib.suppress(OSError):
        _Relay(tls, inside).run()
    inside.close()
    tls.close()


class _Relay:
    def __init__(self, tls: TlsSocket, inside: _Inside) -> None:
        self._tls = tls
        self._inside = inside
        self._inward = _Way(tls, inside, inside.end_writing)
        self._outward = _Way(inside, tls, tls.end_writing)
        self._poller = select.poll()
        self._poller.register(tls)
        self._poller.register(inside)
        self._watched = True
        self._last_words: Deadline | None = None
        self._said = False

    def run(self) -> None:
        """Move bytes both ways; raises OSError where the TLS connection is lost."""
        inward, outward = self._inward, self._outward
        self._outer_ready = self._inner_ready = select.POLLIN  # HELLO may have come with the rest
        while True:
            if self._outer_ready & select.POLLERR:
                return
            at_once = self._tls.pending() > 0 and inward.reads
            if at_once or self._outer_ready & select.POLLIN or self._inner_ready & select.POLLOUT:
                inward.move()
            if self._inside.gone or self._inner_ready & select.POLLIN or outward.stuck:
                outward.move()
            if outward.ended and not outward.stuck and inward.ended and not inward.stuck:
                return
            self._look_at_the_end()
            if self._last_words is not None and self._last_words.passed():
                return
            self._wait()

    def _wait(self) -> None:
        """Wait until something can be moved."""
        inward, outward = self._inward, self._outward
        self._poller.modify(self._tls, _interest(inward, outward))
        if self._watched:
            self._poller.modify(self._inside, _interest(outward, inward))
        timeout = None if self._last_words is None else self._last_words.left_ms()
        if (self._tls.pending() and inward.reads) or (self._inside.gone and outward.reads):
            timeout = 0
        ready = dict(self._poller.poll(timeout))
        self._outer_ready = ready.get(self._tls.fileno(), 0)
        self._inner_ready = ready.get(self._inside.fileno(), 0) if self._watched else 0
        if self._inner_ready & _BROKEN:
            # The session has closed. Reads from here on never wait, and poll() would not either.
            self._inside.gone = True

    def _look_at_the_end(self) -> None:
        """A session that has gone: its last words get a while, then the client's rest a moment."""
        if not self._inside.gone:
            return
        if self._watched:
            self._watched = False
            self._poller.unregister(self._inside)
            self._last_words = Deadline(settings.BULK_TIMEOUT)
        if self._outward.ended and not self._outward.stuck and not self._said:
            self._said = True
            # Closing with unread bytes resets the connection, and may overtake the last words.
            self._last_words = Deadline(FAREWELL_TIMEOUT)


def _interest(reads: _Way, writes: _Way) -> int:
    """What to wait for on a socket that is the source of one way and the sink of the other."""
    return (select.POLLIN if reads.reads else 0) | (select.POLLOUT if writes.stuck else 0)
