"""Turns on a device: one computation at a time, over all session processes of a node.

The kernel releases a file lock with its last holder, so a session that is killed in the middle of a
graph frees the device. flock() belongs to an open file description: each user opens the files
anew, otherwise two threads (or a parent and its fork) would share one lock.

Two locks make the turns fair. Whoever wants the device first takes the turnstile and holds it while
it waits for the device. A session that computes all the time has to pass the turnstile again, and
finds it held by whoever waits: they alternate.

The lock is held around ggml's work alone, never across network I/O: nodes that wait for each other
cannot deadlock. Times are seconds.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

from ringline.errors import RefusedError
from ringline.net.deadline import Deadline
from ringline.server.limits import EXECUTION_TIMEOUT

__all__ = ["ExecutionLock", "LockFiles"]

_FIRST_PAUSE: Final = 20e-6
_LONGEST_PAUSE: Final = 500e-6


class LockFiles:
    """The files behind the lock of one device: made by the gatekeeper, inherited by its forks."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.turnstile = os.memfd_create("ringline-turnstile")
        self.file = os.memfd_create("ringline-device")

    def close(self) -> None:
        """Close the files of this process; locks that others hold stay."""
        for descriptor in (self.turnstile, self.file):
            os.close(descriptor)


class ExecutionLock:
    """One user of a device's lock: one thread. A context manager."""

    def __init__(
        self,
        files: LockFiles,
        *,
        timeout: float = EXECUTION_TIMEOUT,
        waited: Callable[[int], object] = lambda nanoseconds: None,
    ) -> None:
        """Open the files; `waited` gets the nanoseconds that each turn was waited for."""
        self._device = files.device
        self._timeout = timeout
        self._waited = waited
        self._turnstile = _open_again(files.turnstile)
        self._file = _open_again(files.file)

    def __enter__(self) -> None:
        """Wait for this session's turn.

        Raises:
            RefusedError: the device stayed busy until the deadline.
        """
        deadline = Deadline(self._timeout)
        began = time.perf_counter_ns()
        try:
            self._acquire(self._turnstile, deadline)
            try:
                self._acquire(self._file, deadline)
            finally:
                fcntl.flock(self._turnstile, fcntl.LOCK_UN)
        finally:
            self._waited(time.perf_counter_ns() - began)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Let the next one compute."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Close the files, which also gives the lock back; may be called again."""
        for descriptor in (self._turnstile, self._file):
            if descriptor >= 0:
                os.close(descriptor)
        self._turnstile = self._file = -1

    def _acquire(self, descriptor: int, deadline: Deadline) -> None:
        pause = _FIRST_PAUSE
        while not _try_lock(descriptor):
            if deadline.passed():
                raise RefusedError(
                    f"device {self._device} was busy with other sessions for {self._timeout:g} s"
                )
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)


def _open_again(descriptor: int) -> int:
    """The same file under a new open file description; dup() would share the lock."""
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDWR | os.O_CLOEXEC)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
