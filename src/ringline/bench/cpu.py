"""Processor time: of processes that we started with all below them, and of the whole machine.

Linux: reads /proc. Seconds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["machine_seconds", "tree_seconds"]

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def tree_seconds(pid: int) -> float:
    """What a process and all that run below it have used so far; one that has gone counts 0."""
    return sum(map(_seconds, _tree(pid)))


def machine_seconds() -> float:
    """What all processors together have been busy so far, by anybody."""
    user, nice, system, _idle, _wait, irq, soft = _read(Path("/proc/stat")).split()[1:8]
    return sum(map(int, (user, nice, system, irq, soft))) * _TICK


def _tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(task).split():
            yield from _tree(int(child))


def _seconds(pid: int) -> float:
    # The name stands in parentheses and may hold anything; utime and stime are fields 14 and 15.
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK if fields else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
