"""Connections from accept to the end of their handshake.

Nobody is waited for: every socket is non-blocking, and a connection that has not finished HELLO is
closed at its deadline. Their numbers are bounded. Whoever has finished is handed on and no longer
ours.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

from ringline import settings
from ringline.errors import ProtocolError, RefusedError
from ringline.net.connect import keep_alive
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.server.handshake import Handshake, Stage
from ringline.server.limits import MOST_HALF_OPEN, MOST_WAITING
from ringline.wire.extension import ExtHello
from ringline.wire.frames import error_frame

__all__ = ["Admit", "Reception"]

_log = logging.getLogger(__name__)
#: after a failed accept (no descriptors left): do not spin.
_RECOVERY: Final = 0.1
#: takes what the client said, its address and its socket; raises RefusedError.
Admit = Callable[[ExtHello | None, str, socket.socket], None]


class _Guest:
    """One connection in its handshake."""

    def __init__(self, sock: socket.socket, name: str) -> None:
        self.sock = sock
        self.name = name
        self.handshake = Handshake()
        self.deadline = Deadline(settings.HELLO_TIMEOUT)

    @property
    def idle(self) -> bool:
        """Whether it has said HELLO and no command yet."""
        return self.handshake.stage is Stage.FIRST_COMMAND


class Reception:
    """Accepts connections and leads each through its handshake.

    Args:
        listener: the listening socket, ours to close.
        selector: the gatekeeper's; its keys carry the function to call.
        admit: takes over whoever has finished.
    """

    def __init__(
        self, listener: socket.socket, selector: selectors.BaseSelector, admit: Admit
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._selector = selector
        self._admit = admit
        self._guests: dict[int, _Guest] = {}
        selector.register(listener, selectors.EVENT_READ, self._accept)

    def patience(self) -> float | None:
        """Seconds until the next deadline; None where there is none."""
        times = [guest.deadline.left() for guest in self._guests.values()]
        return min((left for left in times if left is not None), default=None)

    def expire(self) -> None:
        """Close those whose deadline has passed."""
        for guest in [guest for guest in self._guests.values() if guest.deadline.passed()]:
            stage, seconds = guest.handshake.stage.name, settings.HELLO_TIMEOUT
            _log.warning("%s: closed, no whole %s within %g s", guest.name, stage, seconds)
            self._drop(guest)

    def close(self) -> None:
        """Close all sockets, and touch nothing else: a fork calls it too."""
        self._listener.close()
        for guest in self._guests.values():
            guest.sock.close()

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
            self._receive(sock, str(Endpoint(address[0], address[1])))

    def _receive(self, sock: socket.socket, name: str) -> None:
        half_open = sum(not guest.idle for guest in self._guests.values())
        if half_open >= MOST_HALF_OPEN:
            _log.warning("%s: closed, %d connections have not said HELLO yet", name, half_open)
            sock.close()
            return
        sock.setblocking(False)
        keep_alive(sock)
        guest = _Guest(sock, name)
        self._guests[sock.fileno()] = guest
        self._selector.register(sock, selectors.EVENT_READ, partial(self._hear, guest))

    def _hear(self, guest: _Guest) -> None:
        """A guest has something to say, or has left."""
        if guest.sock.fileno() not in self._guests:
            return  # closed earlier in the same round
        try:
            if not self._advance(guest):
                self._drop(guest)
            elif guest.handshake.stage is Stage.DONE:
                self._finish(guest)
        except BlockingIOError:
            return
        except ProtocolError as error:
            _log.warning("%s: not a client, closing: %s", guest.name, error)
            self._drop(guest)
        except OSError as error:
            _log.info("%s: lost in its handshake (%s)", guest.name, error)
            self._drop(guest)

    def _advance(self, guest: _Guest) -> bool:
        """One read's worth of handshake; False where the guest has closed."""
        handshake = guest.handshake
        if guest.idle:
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

    def _finish(self, guest: _Guest) -> None:
        """The handshake is over: hand the connection on, or say why not."""
        hello = guest.handshake.extended
        try:
            self._admit(hello, guest.name, guest.sock)
        except RefusedError as error:
            _log.warning("%s: turned away: %s", guest.name, error)
            if hello is not None:
                guest.sock.send(error_frame(error.code, str(error)))
        self._drop(guest)

    def _drop(self, guest: _Guest) -> None:
        """Close our copy of a guest's socket."""
        self._selector.unregister(guest.sock)
        del self._guests[guest.sock.fileno()]
        guest.sock.close()

    def _make_room(self) -> None:
        """Idle connections cost little and have no deadline, but their number has a limit."""
        idle = [guest for guest in self._guests.values() if guest.idle]
        if len(idle) > MOST_WAITING:
            _log.warning("%s: closed, it said nothing after HELLO and others wait", idle[0].name)
            self._drop(idle[0])
