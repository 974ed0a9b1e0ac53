"""The gatekeeper: one thread, one loop. It receives connections, routes them, and reaps.

It never computes and never waits for one client. After the handshake a connection is handed to a
session process (roster.py) and is the gatekeeper's no longer.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import selectors
import signal
import socket
import ssl
import time
from functools import partial
from typing import Final

from ringline.errors import CallerError
from ringline.net.deadline import Deadline
from ringline.server.context import Node
from ringline.server.crashes import Crashes
from ringline.server.door import Door
from ringline.server.exporter import Exporter
from ringline.server.ledger import Ledger
from ringline.server.limits import STOP_TIMEOUT, WARM_PROCESSES
from ringline.server.log import tell
from ringline.server.pool import Pool, SessionProcess
from ringline.server.reception import Reception
from ringline.server.roster import Roster
from ringline.server.settling import STOP_SIGNALS
from ringline.server.tally import Counter

__all__ = ["Gatekeeper"]

_log = logging.getLogger(__name__)
#: after a failed fork (no processes or descriptors left): do not spin.
_RECOVERY: Final = 0.1


class Gatekeeper:
    """The node's loop. A context manager: leaving it ends all session processes.

    Args:
        node: what the session processes inherit.
        listener: the listening socket of the plain port, None: there is none.
        tls: the listening socket of the TLS port and what it shows, None: there is none.
        scrapers: the listening socket of the metrics page, None: there is none.
    """

    def __init__(
        self,
        node: Node,
        listener: socket.socket | None,
        tls: tuple[socket.socket, ssl.SSLContext] | None = None,
        scrapers: socket.socket | None = None,
    ) -> None:
        self._selector = selectors.DefaultSelector()
        self._processes: dict[int, SessionProcess] = {}
        self._stopping = False
        self._wake, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._ledger = Ledger(node.options.max_sessions)
        self._exporter = (
            Exporter(scrapers, node, self._ledger, self._selector, self._forget_for_exporter)
            if scrapers
            else None
        )
        self._pool = Pool(node, WARM_PROCESSES, self._ledger, born=self._watch, forget=self._forget)
        self.crashes = Crashes(node.options.crash_pause)
        tally = self._ledger.tally
        self._roster = Roster(self._pool, node.options.max_sessions, self.crashes, tally)
        self._reception = Reception(
            listener,
            self._selector,
            self._roster.admit,
            patience=node.options.idle_timeout,
            failed=partial(tally.add, Counter.HANDSHAKE, 1),
        )
        self._door = (
            Door(*tls, self._selector, self._reception.receive, self._forget, self._ledger)
            if tls
            else None
        )
        self._until_stdin_closes = node.options.until_stdin_closes

    def __enter__(self) -> Gatekeeper:
        """Take over signals and get ready; raises CallerError where stdin cannot be watched."""
        self._selector.register(self._wake, selectors.EVENT_READ, self._woken)
        if self._until_stdin_closes:
            self._watch_stdin()
        signal.set_wakeup_fd(self._tell)
        for number in STOP_SIGNALS:
            signal.signal(number, self._ask_to_stop)
        self._keep_exporter()
        self._refill()
        return self

    def __exit__(self, *_: object) -> None:
        """End everything within a moment."""
        if self._door is not None:
            self._door.close()
        self._reception.close()
        if self._exporter is not None:
            self._exporter.close()
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
            self._reception.expire()
            self._keep_exporter()
            self._refill()

    # Reasons to stop

    def _ask_to_stop(self, *_: object) -> None:
        self._stopping = True

    def _woken(self) -> None:
        """A signal has come; its handler has said what it means."""
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)

    def _watch_stdin(self) -> None:
        try:
            self._selector.register(0, selectors.EVENT_READ, self._read_stdin)
        except (OSError, ValueError):
            raise CallerError(
                "--until-stdin-closes needs a pipe or a terminal as standard input"
            ) from None

    def _read_stdin(self) -> None:
        if not os.read(0, 4096):
            self._stopping = True

    # Session processes

    def _refill(self) -> None:
        try:
            if self._door is not None:
                self._door.keep()
            self._pool.refill()
        except OSError as error:
            text = "cannot start a session process (%s)"
            tell(_log, logging.WARNING, "no_process", text, error, errno=error.errno)
            time.sleep(_RECOVERY)

    def _keep_exporter(self) -> None:
        """Let another process serve the metrics, if there is a socket for that."""
        if self._exporter is not None:
            self._exporter.keep()

    def _patience(self) -> float | None:
        """Seconds until something is due that no descriptor tells; None where nothing is."""
        exporter = self._exporter.patience() if self._exporter is not None else None
        due = (self._reception.patience(), exporter)
        return min((seconds for seconds in due if seconds is not None), default=None)

    def _watch(self, process: SessionProcess) -> None:
        """A process has been born: notice its end."""
        self._processes[process.pidfd] = process
        self._selector.register(process.pidfd, selectors.EVENT_READ, partial(self._reap, process))

    def _reap(self, process: SessionProcess) -> None:
        self._selector.unregister(process.pidfd)
        del self._processes[process.pidfd]
        self._roster.ended(process)
        self._ledger.give_back(process.sheet)

    def _forget(self) -> None:
        """In a fork: close what is ours.

        Closing the selector leaves what the parent registered alone; unregistering would not, for
        parent and child share the kernel's table.
        """
        self._forget_for_exporter()
        if self._exporter is not None:
            self._exporter.close()

    def _forget_for_exporter(self) -> None:
        self._selector.close()
        self._reception.close()
        if self._door is not None:
            self._door.forget()
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
