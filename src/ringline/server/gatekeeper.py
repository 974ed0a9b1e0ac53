"""The gatekeeper: one thread, one loop. It accepts, says HELLO, routes, and reaps.

It never computes and never waits for one client: every socket is non-blocking, and a connection
that has not finished HELLO is closed at its deadline. After the handshake a connection is handed to
a session process and is the gatekeeper's no longer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ringline import settings
from ringline.errors import CallerError, ProtocolError, RefusedError
from ringline.net.connect import keep_alive
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.server.context import Node
from ringline.server.handshake import Handshake, Stage
from ringline.server.limits import (
    MOST_HALF_OPEN,
    MOST_WAITING,
    STOP_TIMEOUT,
    WARM_PROCESSES,
)
from ringline.server.pool import Pool, SessionProcess
from ringline.server.roster import Roster
from ringline.server.session import STOP_SIGNALS
from ringline.wire.frames import error_frame

__all__ = ["Gatekeeper"]

_log = logging.getLogger(__name__)
#: after a failed fork or accept (no descriptors, no processes): do not spin.
_RECOVERY: Final = 0.1


class _Guest:
    """A connection in its handshake."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.sock = sock
        self.name = name
        self.handshake = Handshake()
        self.deadline = Deadline(settings.HELLO_TIMEOUT)


class Gatekeeper:
    """The node's loop. A context manager: leaving it ends all session processes."""

    def __init__(self, listener: socket.socket, node: Node) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._guests: dict[int, _Guest] = {}
        self._processes: dict[int, SessionProcess] = {}
        self._stopping = False
        self._wake, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._pool = Pool(node, WARM_PROCESSES, born=self._watch, forget=self._forget)
        self._roster = Roster(self._pool, node.options.max_sessions)
        self._watch_stdin = node.options.until_stdin_closes

    def __enter__(self) -> Gatekeeper:
        """Take over signals and get ready; raises CallerError where stdin cannot be watched."""
        self._on_readable(self._wake, self._woken)
        self._on_readable(self._listener.fileno(), self._accept)
        if self._watch_stdin:
            self._watch_for_end_of_stdin()
        signal.set_wakeup_fd(self._tell)
        for number in STOP_SIGNALS:
            signal.signal(number, self._ask_to_stop)
        self._refill()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything within a moment."""
        self._listener.close()
        for guest in self._guests.values():
            guest.sock.close()
        self._end_processes()
        signal.set_wakeup_fd(-1)
        self._selector.close()
        os.close(self._wake)
        os.close(self._tell)

    def run(self) -> None:
        """Serve until a signal, or the end of standard input, asks to stop."""
        while not self._stopping:
            for key, _ in self._selector.select(self._patience()):
                key.data()
            self._expire()
            self._refill()

    def _on_readable(self, descriptor: int, react: Callable[[], None]) -> None:
        self._selector.register(descriptor, selectors.EVENT_READ, react)

    # Signals and standard input

    def _ask_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def _watch_for_end_of_stdin(self) -> None:
        try:
            self._on_readable(0, self._read_stdin)
        except (OSError, ValueError):
            raise CallerError(
                "--until-stdin-closes needs a pipe or a terminal as standard input"
            ) from None

    def _read_stdin(self) -> None:
        if not os.read(0, 4096):
            self._stopping = True

    # Connections in their handshake

    def _accept(self) -> None:
        while True:
            try:
                sock, address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                _log.warning("cannot accept a connection (%s)", error)
                time.sleep(_RECOVERY)
                return
            self._receive_guest(sock, str(Endpoint(address[0], address[1])))

    def _receive_guest(self, sock: socket.socket, name: str) -> None:
        half_open = sum(g.handshake.stage is not Stage.FIRST_COMMAND for g in self._guests.values())
        if half_open >= MOST_HALF_OPEN:
            _log.warning("%s: closed, %d connections have not said HELLO yet", name, half_open)
            sock.close()
            return
        sock.setblocking(False)
        keep_alive(sock)
        guest = _Guest(sock, name)
        self._guests[sock.fileno()] = guest
        self._on_readable(sock.fileno(), partial(self._hear, guest))

    def _hear(self, guest: _Guest) -> None:
        if guest.sock.fileno() not in self._guests:
            return  # closed earlier in the same round
        try:
            if not self._advance(guest):
                self._drop(guest)
            elif guest.handshake.stage is Stage.DONE:
                self._admit(guest)
        except BlockingIOError:
            return
        except ProtocolError as error:
            _log.warning("%s: not a client, closing: %s", guest.name, error)
            self._drop(guest)
        except OSError as error:
            _log.info("%s: lost in its handshake (%s)", guest.name, error)
            self._drop(guest)

    def _advance(self, guest: _Guest) -> bool:
        """One read's worth of handshake; False where the connection has been closed."""
        handshake = guest.handshake
        if handshake.stage is Stage.FIRST_COMMAND:
            number = guest.sock.recv(1, socket.MSG_PEEK)
            if number:
                handshake.peeked(number[0])
                guest.deadline = Deadline(settings.HELLO_TIMEOUT)
            return bool(number)
        data = guest.sock.recv(handshake.wanted())
        if not data:
            return False
        reply = handshake.feed(data)
        if reply:
            guest.sock.send(reply)  # fits an empty send buffer whole
            guest.deadline = Deadline(None)
            self._make_room()
        return True

    def _admit(self, guest: _Guest) -> None:
        hello = guest.handshake.extended
        try:
            self._roster.admit(hello, guest.name, guest.sock)
        except RefusedError as error:
            _log.warning("%s: turned away: %s", guest.name, error)
            if hello is not None:
                guest.sock.send(error_frame(error.code, str(error)))
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        self._selector.unregister(guest.sock)
        del self._guests[guest.sock.fileno()]
        guest.sock.close()

    def _make_room(self) -> None:
        """Idle connections cost little and have no deadline, but their number has a limit."""
        idle = [g for g in self._guests.values() if g.handshake.stage is Stage.FIRST_COMMAND]
        if len(idle) > MOST_WAITING:
            _log.warning("%s: closed, it said nothing after HELLO and others wait", idle[0].name)
            self._drop(idle[0])

    def _patience(self) -> float | None:
        """Seconds until the next deadline; None where there is none."""
        times = [guest.deadline.left() for guest in self._guests.values()]
        return min((left for left in times if left is not None), default=None)

    def _expire(self) -> None:
        for guest in [guest for guest in self._guests.values() if guest.deadline.passed()]:
            _log.warning(
                "%s: closed, no %s within %g s",
                guest.name,
                guest.handshake.stage.name,
                settings.HELLO_TIMEOUT,
            )
            self._drop(guest)

    # Session processes

    def _refill(self) -> None:
        try:
            self._pool.refill()
        except OSError as error:
            _log.warning("cannot start a session process (%s)", error)
            time.sleep(_RECOVERY)

    def _watch(self, process: SessionProcess) -> None:
        self._processes[process.pidfd] = process
        self._on_readable(process.pidfd, partial(self._reap, process))

    def _reap(self, process: SessionProcess) -> None:
        self._selector.unregister(process.pidfd)
        del self._processes[process.pidfd]
        self._roster.ended(process)

    def _forget(self) -> None:
        """In a fork: close what is ours, without touching what the parent has registered."""
        self._selector.close()
        self._listener.close()
        for guest in self._guests.values():
            guest.sock.close()
        for process in self._processes.values():
            process.close()
        os.close(self._wake)
        os.close(self._tell)

    def _end_processes(self) -> None:
        """SIGTERM to all, then SIGKILL to those that have not ended in time."""
        poller = select.poll()
        for process in self._processes.values():
            process.signal(signal.SIGTERM)
            poller.register(process.pidfd, select.POLLIN)
        deadline = Deadline(STOP_TIMEOUT)
        alive = dict(self._processes)
        while alive and not deadline.passed():
            for descriptor, _ in poller.poll(deadline.left_ms()):
                poller.unregister(descriptor)
                alive.pop(descriptor)
        for process in alive.values():
            process.signal(signal.SIGKILL)
        for process in self._processes.values():
            process.reap()
            process.close()
        self._processes.clear()
