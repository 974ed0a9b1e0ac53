"""The gatekeeper's side of the doorman: start it, take connections from it, start it again.

The listening socket stays with the gatekeeper, so that who comes while there is no doorman waits
for the next one.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import signal
import socket
import ssl
import time
from collections.abc import Callable
from typing import Final, NoReturn

from ringline.net.endpoint import Endpoint
from ringline.server.doorman import Doorman
from ringline.server.ledger import Ledger
from ringline.server.log import speak_as, tell
from ringline.server.settling import STOP_SIGNALS, settle_in
from ringline.server.tally import Tally

__all__ = ["Door"]

_log = logging.getLogger(__name__)
_MOST: Final = 4096
#: messages of a doorman that are taken at once; others get their turn in between.
_ROUND: Final = 16
#: a doorman that ends within this many seconds is not replaced at once.
_SHORT: Final = 1.0
_RECOVERY: Final = 0.1


class Door:
    """The TLS port of a node.

    Args:
        listener: its listening socket, ours to close.
        context: the node's certificate and CA.
        selector: the gatekeeper's; its keys carry the function to call.
        receive: takes a connection, its address, and the seconds that its handshake may still take.
        forget: called in the child: closes what belongs to the gatekeeper, this door among it.
        ledger: has a sheet for the doorman.
    """

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        selector: selectors.BaseSelector,
        receive: Callable[[socket.socket, Endpoint, float], None],
        forget: Callable[[], None],
        ledger: Ledger,
    ) -> None:
        self._listener = listener
        self._context = context
        self._selector = selector
        self._receive = receive
        self._forget_all = forget
        self._ledger = ledger
        self._sheet = ledger.take()
        self._pid = 0
        self._pidfd = -1
        self._control: socket.socket | None = None
        self._began = 0.0

    def keep(self) -> None:
        """Start a doorman where there is none.

        Raises:
            OSError: the system gives no more processes or descriptors.
        """
        if self._control is None:
            self._start()

    def forget(self) -> None:
        """In a fork: close what is the gatekeeper's."""
        self._listener.close()
        if self._control is not None:
            self._control.close()
            os.close(self._pidfd)

    def close(self) -> None:
        """End the doorman; connections that it has handed on are not its any more."""
        self._listener.close()
        if self._control is not None:
            self._control.close()
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
            os.waitpid(self._pid, 0)
            os.close(self._pidfd)
            self._control = None

    def _start(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Until the child has its own handlers, a signal for it would run ours and be lost.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            pid = os.fork()
            if pid == 0:
                ours.close()
                self._become_doorman(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
            theirs.close()
        ours.setblocking(False)
        self._pid, self._pidfd, self._control = pid, os.pidfd_open(pid), ours
        self._began = time.monotonic()
        self._selector.register(ours, selectors.EVENT_READ, self._take)

    def _take(self) -> None:
        """Connections have come, or the doorman has ended."""
        control = self._control
        for _ in range(_ROUND):
            if control is None:
                return
            try:
                text, descriptors, _, _ = socket.recv_fds(control, _MOST, 1)
            except BlockingIOError:
                return
            except OSError:
                text = b""
            if not text:
                self._ended(control)
                return
            facts = json.loads(text)
            address = Endpoint(facts["host"], facts["port"])
            self._receive(socket.socket(fileno=descriptors[0]), address, facts["seconds"])

    def _ended(self, control: socket.socket) -> None:
        self._selector.unregister(control)
        control.close()
        self._control = None
        signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        _, status = os.waitpid(self._pid, 0)
        os.close(self._pidfd)
        self._ledger.give_back(self._sheet)
        self._sheet = self._ledger.take()
        code = os.waitstatus_to_exitcode(status)
        text = "the doorman (pid %d) ended with code %d, another one begins"
        tell(_log, logging.WARNING, "doorman_end", text, self._pid, code, code=code)
        if time.monotonic() - self._began < _SHORT:
            time.sleep(_RECOVERY)

    def _become_doorman(self, control: socket.socket) -> NoReturn:
        """The child: keep the listening socket and nothing else of the gatekeeper's."""
        code = 1
        try:
            listener = self._listener.dup()
            self._forget_all()
            self._ledger.keep_only(self._sheet)
            settle_in()
            speak_as("ringline serve [doorman]")
            Doorman(listener, control, self._context, Tally(self._sheet)).run()
            code = 0
        except BaseException:
            _log.exception("the doorman fails")
        finally:
            logging.shutdown()
            os._exit(code)
