"""Processor time and memory of processes that we started, and processor time of the whole machine.

Linux: reads /proc. Seconds, bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["machine_seconds", "process_seconds", "resident_bytes", "tree", "tree_seconds"]

_TICK = 1 / os.sysconf("SC_CLK_TCK")


def tree_seconds(pid: int) -> float:
    """What a process and all that run below it have used so far; one that has gone counts 0."""
    return sum(map(process_seconds, tree(pid)))


def machine_seconds() -> float:
    """What all processors together have been busy so far, by anybody."""
    user, nice, system, _idle, _wait, irq, soft = _read(Path("/proc/stat")).split()[1:8]
    return sum(map(int, (user, nice, system, irq, soft))) * _TICK


def tree(pid: int) -> Iterator[int]:
    """A process, and all that run below it."""
    yield pid
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in _read(task).split():
            yield from tree(int(child))


def process_seconds(pid: int) -> float:
    """What a process itself has used so far; one that has gone counts 0."""
    # The name stands in parentheses and may hold anything; utime and stime are fields 14 and 15.
    fields = _read(Path(f"/proc/{pid}/stat")).rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * _TICK if fields else 0.0


def resident_bytes(pid: int) -> int:
    """What a process holds in memory now, with what it shares; one that has gone holds nothing."""
    for line in _read(Path(f"/proc/{pid}/status")).splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""
