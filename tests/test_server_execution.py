"""Turns on a device: one at a time over processes, fair, freed with its holder, with a deadline."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NoReturn

import pytest

from ringline.errors import RefusedError
from ringline.net.deadline import Deadline
from ringline.server.execution import ExecutionLock, LockFiles
from tests.peers.processes import patience
from tests.server_client import wait_for


@pytest.fixture
def files() -> Iterator[LockFiles]:
    files = LockFiles("CPU")
    yield files
    files.close()


@contextmanager
def fork(run: Callable[[], None]) -> Iterator[int]:
    """A child process that runs a function; killed at the end."""
    pid = os.fork()
    if pid == 0:
        _run(run)
    try:
        yield pid
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _run(run: Callable[[], None]) -> NoReturn:
    try:
        run()
    finally:
        os._exit(0)


def is_free(files: LockFiles) -> bool:
    lock = ExecutionLock(files, timeout=0)
    try:
        with lock:
            return True
    except RefusedError:
        return False
    finally:
        lock.close()


def hold(files: LockFiles) -> None:
    """In a child: take the turn and keep it."""
    with ExecutionLock(files):
        time.sleep(1000)


def test_two_users_in_one_process_exclude_each_other(files):
    first = ExecutionLock(files)
    with first:
        assert not is_free(files)
    assert is_free(files)
    first.close()


def test_a_turn_ends_with_the_process_that_holds_it(files):
    with fork(lambda: hold(files)):
        wait_for("the child to hold the lock", lambda: not is_free(files))
    assert is_free(files)


def test_a_turn_ends_with_the_lock_that_is_closed(files):
    lock = ExecutionLock(files)
    lock.__enter__()
    assert not is_free(files)
    lock.close()
    lock.close()
    assert is_free(files)


def test_waiting_has_a_deadline_that_names_the_device(files):
    with ExecutionLock(files), pytest.raises(RefusedError, match=r"device CPU was busy .* 0\.05 s"):
        ExecutionLock(files, timeout=0.05).__enter__()


def test_who_gave_up_waiting_is_in_nobodys_way(files):
    with ExecutionLock(files), pytest.raises(RefusedError):
        ExecutionLock(files, timeout=0.05).__enter__()
    assert is_free(files)


class Patient(ExecutionLock):
    """Notes how many turns the others had when it got into the line, and when its turn came."""

    def __init__(self, files: LockFiles, others: Callable[[], int]) -> None:
        super().__init__(files, timeout=patience(20))
        self._others = others
        self.seen: list[int] = []

    def _acquire(self, descriptor: int, deadline: Deadline) -> None:
        super()._acquire(descriptor, deadline)
        self.seen.append(self._others())


def test_a_user_that_never_pauses_does_not_starve_others(files):
    """Without the turnstile the greedy one would win nearly every race.

    How long it takes to get through it is up to whoever gives out CPUs; from there on nobody gets
    ahead but the one whose turn it is.
    """
    done = threading.Event()
    turns = [0]

    def greedy() -> None:
        lock = ExecutionLock(files)
        while not done.is_set():
            with lock:
                turns[0] += 1
                time.sleep(0.002)
        lock.close()

    thread = threading.Thread(target=greedy)
    thread.start()
    lock = Patient(files, lambda: turns[0])
    try:
        for _ in range(20):
            with lock:
                pass
    finally:
        done.set()
        thread.join()
    lock.close()
    assert len(lock.seen) == 2 * 20
    ahead = [came - lined_up for lined_up, came in zip(*[iter(lock.seen)] * 2, strict=True)]
    assert max(ahead) <= 1
