"""Session processes as the gatekeeper sees them: fork some ahead, give one away, notice the end.

Forking takes a millisecond, finding the devices afterwards some more; a few processes are therefore
ready before they are needed. Memory is shared with the gatekeeper until it is written to.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import NoReturn

from ringline.server.board import Board
from ringline.server.context import Node
from ringline.server.handover import Handover, send
from ringline.server.ledger import Ledger
from ringline.server.limits import FORK_PAUSE
from ringline.server.session import run_session
from ringline.server.settling import STOP_SIGNALS

__all__ = ["Pool", "SessionProcess"]

_log = logging.getLogger(__name__)


class SessionProcess:
    """One child of the gatekeeper, idle or with a session.

    Attributes:
        pid: process id; pidfd: becomes readable when the process has ended.
        sheet: where it counts.
    """

    def __init__(self, pid: int, control: socket.socket, board: Board) -> None:
        self.pid = pid
        self.pidfd = os.pidfd_open(pid)
        self._control = control
        self._board = board
        self.sheet = board.sheet

    def hand_over(self, handover: Handover, connection: socket.socket) -> None:
        """Give it a connection; our copy of the connection stays open.

        Raises:
            OSError: it is gone, or does not take its messages.
        """
        send(self._control, handover, connection)

    def doing(self) -> str:
        """The commands that it was doing when it ended, by name; else the last one, or "none"."""
        return self._board.doing()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; nothing happens where it has ended."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """The exit status of a process that has ended, negative for a signal."""
        _, status = os.waitpid(self.pid, 0)
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """Close what the gatekeeper has of it."""
        self._control.close()
        self._board.close()
        os.close(self.pidfd)


class Pool:
    """Makes session processes.

    Args:
        node: what they inherit.
        size: how many to keep idle.
        ledger: has a sheet for each.
        born: called in the gatekeeper with each new process.
        forget: called in the child: closes what belongs to the gatekeeper.
    """

    def __init__(
        self,
        node: Node,
        size: int,
        ledger: Ledger,
        *,
        born: Callable[[SessionProcess], None],
        forget: Callable[[], None],
    ) -> None:
        self._node = node
        self._size = size
        self._ledger = ledger
        self._born = born
        self._forget = forget
        self._idle: list[SessionProcess] = []
        self._resting_until = 0.0

    def refill(self) -> None:
        """Fork until enough are idle; not now where one has died a moment ago.

        Raises:
            OSError: the system gives no more processes or descriptors.
        """
        if time.monotonic() < self._resting_until:
            return
        while len(self._idle) < self._size:
            self._idle.append(self._fork())

    def take(self) -> SessionProcess:
        """An idle process, the oldest: it has had the most time to get ready.

        Raises:
            OSError: there is none and none can be made.
        """
        return self._idle.pop(0) if self._idle else self._fork()

    def remove(self, process: SessionProcess) -> None:
        """Take a process that has ended out of the idle ones, if it is among them."""
        self._resting_until = time.monotonic() + FORK_PAUSE
        if process in self._idle:
            self._idle.remove(process)

    def _fork(self) -> SessionProcess:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        board = Board(self._ledger.take())
        # Until the child has its own handlers, a signal for it would run ours and be lost.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        pid = os.fork()
        if pid == 0:
            self._become_session(ours, theirs, board)
        signal.pthread_sigmask(signal.SIG_SETMASK, former)
        theirs.close()
        ours.setblocking(False)
        process = SessionProcess(pid, ours, board)
        self._born(process)
        return process

    def _become_session(self, ours: socket.socket, theirs: socket.socket, board: Board) -> NoReturn:
        """The child: let go of everything of the gatekeeper's.

        Above all of the other session processes' sockets: they notice the gatekeeper's end by end
        of file, which does not come while a copy is open anywhere.
        """
        try:
            ours.close()
            self._forget()
            self._ledger.keep_only(board.sheet)
            run_session(theirs, self._node, board)
        except BaseException:
            _log.exception("a session process cannot begin")
        os._exit(1)
