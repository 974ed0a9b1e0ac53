"""The doorman: accepts TLS connections, asks for certificates, and gives each to a relay.

A process of its own beside the gatekeeper, and as patient: every socket is non-blocking, nobody is
waited for, who has not finished at the deadline is closed, and the numbers are bounded as in the
reception. A connection whose certificate is good gets a relay (relay.py), and the gatekeeper gets
the relay's other end, a plain socket, with the address and what is left of the deadline. If the
doorman dies the relays live on, and the gatekeeper starts another one (door.py).
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import selectors
import signal
import socket
import ssl
from functools import partial
from typing import Final, NoReturn

from ringline import settings
from ringline.net.connect import keep_alive
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.net.stream import no_delay
from ringline.net.tls import TlsSocket, in_words
from ringline.server.accepting import accept_all
from ringline.server.crowd import Crowd
from ringline.server.limits import FAREWELL_TIMEOUT
from ringline.server.log import speak_as, tell
from ringline.server.origin import origin_of
from ringline.server.relay import relay
from ringline.server.tally import Counter, Tally

__all__ = ["Doorman"]

_log = logging.getLogger(__name__)
#: the first byte of a TLS record that begins a handshake.
_HANDSHAKE: Final = 0x16
#: a fatal alert, protocol_version: by it a plain client knows that this port speaks TLS.
_ALERT: Final = bytes([0x15, 3, 3, 0, 2, 2, 70])


class _Guest:
    """One connection in its handshake, or on its way out."""

    def __init__(self, sock: socket.socket, address: Endpoint, context: ssl.SSLContext) -> None:
        self.sock = sock
        self.address = address
        self.name = str(address)
        self.origin = origin_of(address.host)
        self.tls = TlsSocket(sock, context, server_side=True)
        self.deadline = Deadline(settings.HELLO_TIMEOUT)
        self.begun = False
        self.leaving = False
        self.half_open = True

    @property
    def missing(self) -> str:
        """What it has not finished."""
        return "" if self.leaving else "TLS"

    def close(self) -> None:
        """Close our copy of its socket; the connection lives on where a relay has it."""
        self.tls.forget()


class Doorman:
    """The process' loop.

    Args:
        listener: the listening socket of the TLS port.
        control: to the gatekeeper, whole messages; its end is ours.
        context: the node's certificate and CA.
        tally: counts who is turned away.
    """

    def __init__(
        self,
        listener: socket.socket,
        control: socket.socket,
        context: ssl.SSLContext,
        tally: Tally,
    ) -> None:
        listener.setblocking(False)
        control.setblocking(False)
        self._listener = listener
        self._control = control
        self._context = context
        self._failed = partial(tally.add, Counter.HANDSHAKE, 1)
        self._selector = selectors.DefaultSelector()
        self._guests: Crowd[_Guest] = Crowd(self._selector, self._failed)
        self._relays: dict[int, str] = {}
        self._wake, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._over = False

    def run(self) -> None:
        """Work until the gatekeeper is gone."""
        signal.set_wakeup_fd(self._tell)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        for source, action in (
            (self._listener, self._accept),
            (self._control, self._end),
            (self._wake, self._reap),
        ):
            self._selector.register(source, selectors.EVENT_READ, action)
        while not self._over:
            for key, _ in self._selector.select(self._guests.patience()):
                key.data()
            self._guests.expire()

    def _end(self) -> None:
        """The gatekeeper says nothing; so it has gone."""
        self._over = True

    def _reap(self) -> None:
        """Relays have ended; one that did not mean to is told of."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                name = self._relays.pop(ended[0], "a connection")
                code = os.waitstatus_to_exitcode(ended[1])
                if code:
                    text = "%s: its relay ended with code %d, the connection is cut"
                    tell(
                        _log,
                        logging.WARNING,
                        "relay_crash",
                        text,
                        name,
                        code,
                        client=name,
                        code=code,
                    )

    def _accept(self) -> None:
        accept_all(self._listener, self._receive)

    def _receive(self, sock: socket.socket, address: Endpoint) -> None:
        keep_alive(sock)
        no_delay(sock)
        self._guests.enter(_Guest(sock, address, self._context), self._hear)

    def _hear(self, guest: _Guest) -> None:
        """A guest has something to say, takes what we have to say, or has left."""
        if guest not in self._guests:
            return
        try:
            if guest.leaving:
                if not guest.sock.recv(65536):
                    self._guests.drop(guest)
            elif self._begin(guest):
                self._advance(guest)
        except BlockingIOError:
            return
        except ssl.SSLEOFError:
            self._guests.lost(guest, "it left")
        except ssl.SSLError as error:
            self._refuse(guest, "tls_refused", in_words(error))
        except OSError as error:
            self._guests.lost(guest, error.strerror or str(error))

    def _begin(self, guest: _Guest) -> bool:
        """Look at the first byte; whether it is that of a TLS client."""
        if guest.begun:
            return True
        first = guest.sock.recv(1, socket.MSG_PEEK)
        if not first:
            self._guests.drop(guest)
            return False
        guest.begun = first[0] == _HANDSHAKE
        if not guest.begun:
            guest.sock.send(_ALERT)
            self._refuse(guest, "plain_client", "it does not speak TLS, and this port does")
        return guest.begun

    def _advance(self, guest: _Guest) -> None:
        done = guest.tls.handshake()
        writes = selectors.EVENT_WRITE if guest.tls.unsent else 0
        self._selector.modify(guest.sock, selectors.EVENT_READ | writes, partial(self._hear, guest))
        if done:
            self._hand_on(guest)

    def _refuse(self, guest: _Guest, event: str, reason: str) -> None:
        """End the connection so that the client can read why: a reset would overtake the alert."""
        self._failed(event)
        text = "%s: refused: %s"
        tell(_log, logging.WARNING, event, text, guest.name, reason, client=guest.name)
        guest.leaving = True
        guest.deadline = Deadline(FAREWELL_TIMEOUT)
        try:
            guest.sock.shutdown(socket.SHUT_WR)
            self._selector.modify(guest.sock, selectors.EVENT_READ, partial(self._hear, guest))
        except OSError:
            self._guests.drop(guest)

    def _hand_on(self, guest: _Guest) -> None:
        """Its certificate is good: give it a relay, and the relay's other end to the gatekeeper."""
        ours, theirs = socket.socketpair()
        try:
            facts = {
                "host": guest.address.host,
                "port": guest.address.port,
                "seconds": guest.deadline.left(),
            }
            pid = os.fork()
            if pid == 0:
                theirs.close()
                self._become_relay(guest, ours)
            self._relays[pid] = guest.name
            socket.send_fds(self._control, [json.dumps(facts).encode()], [theirs.fileno()])
        except OSError as error:  # the relay, if there is one, finds its other end closed
            text = "%s: cannot be handed on (%s)"
            tell(_log, logging.WARNING, "no_relay", text, guest.name, error, client=guest.name)
        else:
            who = guest.tls.peer_name()
            text = "%s: shows the certificate of %s"
            tell(_log, logging.INFO, "tls", text, guest.name, who, client=guest.name, name=who)
        finally:
            ours.close()
            theirs.close()
            self._guests.drop(guest)

    def _become_relay(self, guest: _Guest, inner: socket.socket) -> NoReturn:
        """The child: let go of everything of the doorman's but this guest."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            self._listener.close()
            self._control.close()
            for other in self._guests:
                if other is not guest:
                    other.close()
            os.close(self._wake)
            os.close(self._tell)
            speak_as(f"ringline serve [TLS {guest.name}]", client=guest.name)
            relay(guest.tls, inner)
            code = 0
        except BaseException:
            _log.exception("the relay fails")
        finally:
            logging.shutdown()
            os._exit(code)
