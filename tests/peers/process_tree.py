"""The processes that a process has started, theirs too, and what memory they hold. Sizes are bytes.

Reads /proc. A process is held by a pidfd, so that its number cannot come to mean another one.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.peers.processes import Peer, patience


@dataclass(frozen=True, slots=True)
class Watched:
    """A process that somebody else started and ends."""

    pid: int
    pidfd: int

    @property
    def gone(self) -> bool:
        """Whether it has ended; nobody need have waited for it."""
        return _any_ended(self.pidfd, 0.0)

    def wait_gone(self, seconds: float) -> bool:
        """Wait until it has ended, at most `seconds` times patience; whether it has."""
        return _any_ended(self.pidfd, patience(seconds))


@contextmanager
def watched(pids: Sequence[int]) -> Iterator[list[Watched]]:
    """Hold processes that run now; one that has ended meanwhile is left out."""
    with ExitStack() as stack:
        found = []
        for pid in pids:
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                continue
            stack.callback(os.close, descriptor)
            found.append(Watched(pid, descriptor))
        yield found


def cut_power(peer: Peer) -> None:
    """End a peer and all below it without warning; when this returns nothing of it runs.

    `peer.kill()` ends the process that was started: those below it notice that, and go on for a
    moment.
    """
    with watched(descendants(peer.process.pid)) as processes:
        peer.kill()
        for process in processes:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(process.pidfd, signal.SIGKILL)
        assert all(process.wait_gone(10) for process in processes), f"{peer.name} goes on"


def children(pid: int) -> list[int]:
    """The processes that `pid` has started and that run now, by any of its threads."""
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        found += [int(child) for child in _read(task).split()]
    return found


def descendants(pid: int) -> list[int]:
    """`pid`, its children, theirs, and so on."""
    return [pid, *(below for child in children(pid) for below in descendants(child))]


def tree_memory(pid: int) -> int:
    """What a process and all below it hold in memory; what they share counts once."""
    return sum(_share_of_memory(member) for member in descendants(pid))


def mapped_files(pid: int) -> set[Path]:
    """The files in a process's memory, above all its shared libraries."""
    fields = (line.split(maxsplit=5) for line in _read(Path(f"/proc/{pid}/maps")).splitlines())
    return {Path(line[5]) for line in fields if len(line) == 6 and line[5].startswith("/")}


def _share_of_memory(pid: int) -> int:
    for line in _read(Path(f"/proc/{pid}/smaps_rollup")).splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    """A file of /proc; empty where the process has ended."""
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def _any_ended(descriptor: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(descriptor, select.POLLIN)
    return bool(poller.poll(1000 * seconds))
