"""Connections from accept to the end of their handshake.

Nobody is waited for: every socket is non-blocking, and a connection that has not finished HELLO is
closed at its deadline. Their numbers are bounded, in all and for each address; who comes when they
are reached is let in, and whoever waits longest at the address that has most makes room: a client
needs a round trip to finish, so a flood has to be very fast to push it out, and one from elsewhere
cannot. Whoever has finished is handed on and no longer ours.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections.abc import Callable
from functools import partial

from ringline import settings
from ringline.errors import ProtocolError, RefusedError
from ringline.net.connect import keep_alive
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.server.accepting import accept_all
from ringline.server.crowd import Crowd, choose
from ringline.server.handshake import Handshake, Stage
from ringline.server.limits import MOST_WAITING
from ringline.server.log import tell
from ringline.server.origin import origin_of
from ringline.server.tally import rule_of
from ringline.wire.extension import ExtHello
from ringline.wire.frames import error_frame

__all__ = ["Admit", "Reception"]

_log = logging.getLogger(__name__)
#: takes what the client said, its address and its socket; raises RefusedError.
Admit = Callable[[ExtHello | None, str, socket.socket], None]


class _Guest:
    """One connection in its handshake."""

    def __init__(self, sock: socket.socket, address: Endpoint, seconds: float) -> None:
        self.sock = sock
        self.name = str(address)
        self.origin = origin_of(address.host)
        self.handshake = Handshake()
        self.deadline = Deadline(seconds)

    @property
    def idle(self) -> bool:
        """Whether it has said HELLO and no command yet."""
        return self.handshake.stage is Stage.FIRST_COMMAND

    @property
    def half_open(self) -> bool:
        """Whether it has not said HELLO yet: then it counts against the bounds."""
        return not self.idle

    @property
    def missing(self) -> str:
        """What it has not finished."""
        return self.handshake.stage.name

    def close(self) -> None:
        """Close our copy of its socket."""
        self.sock.close()


class Reception:
    """Accepts connections and leads each through its handshake.

    Args:
        listener: the listening socket, ours to close; None: all come through receive().
        selector: the gatekeeper's; its keys carry the function to call.
        admit: takes over whoever has finished.
        patience: seconds between HELLO and the first command, 0: any time.
        failed: is told in a word why a connection became no session's.
    """

    def __init__(
        self,
        listener: socket.socket | None,
        selector: selectors.BaseSelector,
        admit: Admit,
        *,
        patience: float,
        failed: Callable[[str], object],
    ) -> None:
        self._listener = listener
        self._selector = selector
        self._admit = admit
        self._idle_timeout = patience or None
        self._failed = failed
        self._guests: Crowd[_Guest] = Crowd(selector, failed)
        if listener is not None:
            listener.setblocking(False)
            accept = partial(self._accept, listener)
            selector.register(listener, selectors.EVENT_READ, accept)

    def patience(self) -> float | None:
        """Seconds until the next deadline; None where there is none."""
        return self._guests.patience()

    def expire(self) -> None:
        """Close those whose deadline has passed."""
        self._guests.expire()

    def close(self) -> None:
        """Close all sockets, and touch nothing else: a fork calls it too."""
        if self._listener is not None:
            self._listener.close()
        for guest in self._guests:
            guest.close()

    def _accept(self, listener: socket.socket) -> None:
        def receive(sock: socket.socket, address: Endpoint) -> None:
            self.receive(sock, address, settings.HELLO_TIMEOUT)

        accept_all(listener, receive)

    def receive(self, sock: socket.socket, address: Endpoint, seconds: float) -> None:
        """Take a connection in.

        Args:
            sock: the connection, ours to close; behind TLS the end of its relay.
            address: of the client.
            seconds: what its handshake may take from now on.
        """
        sock.setblocking(False)
        keep_alive(sock)
        self._guests.enter(_Guest(sock, address, seconds), self._hear)

    def _hear(self, guest: _Guest) -> None:
        """A guest has something to say, or has left."""
        if guest not in self._guests:
            return
        try:
            if not self._advance(guest):
                self._guests.drop(guest)
            elif guest.handshake.stage is Stage.DONE:
                self._finish(guest)
        except BlockingIOError:
            return
        except ProtocolError as error:
            text = "%s: not a client, closing: %s"
            tell(_log, logging.WARNING, "not_a_client", text, guest.name, error, client=guest.name)
            self._failed("not_a_client")
            self._guests.drop(guest)
        except OSError as error:
            self._guests.lost(guest, error)

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
            guest.deadline = Deadline(self._idle_timeout)
            self._make_room()
        return True

    def _finish(self, guest: _Guest) -> None:
        """The handshake is over: hand the connection on, or say why not."""
        hello = guest.handshake.extended
        try:
            self._admit(hello, guest.name, guest.sock)
        except RefusedError as error:
            text = "%s: turned away: %s"
            tell(_log, logging.WARNING, "turned_away", text, guest.name, error, client=guest.name)
            self._failed(rule_of(error))
            if hello is not None:
                guest.sock.send(error_frame(error.code, str(error)))
        self._guests.drop(guest)

    def _make_room(self) -> None:
        """Idle connections cost little and may wait for long, but their number has a limit."""
        idle = [guest for guest in self._guests if guest.idle]
        if len(idle) > MOST_WAITING:
            self._guests.evict(choose(idle))
