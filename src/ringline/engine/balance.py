"""The default split: every stage takes the same time, within what fits. Pure.

Decoding one token reads each weight once, and reading is what takes the time; so a stage costs what
it reads, or what it multiplies where that takes longer, divided by how fast its device is. The
slowest stage sets the pace of a ring that has a step in flight for every stage. libllama's own
default splits by free memory instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from ringline.errors import CallerError

__all__ = ["Item", "Room", "balance"]

#: share of a device's free memory that is left for compute buffers and other programs.
HEADROOM = 0.1


@dataclass(frozen=True, slots=True)
class Item:
    """A layer as the split sees it: what a token reads of it (any unit), the bytes it takes."""

    read: int
    size: int


@dataclass(frozen=True, slots=True)
class Room:
    """A device as the split sees it.

    Attributes:
        free: bytes of free memory; 0: unknown, everything fits.
        speed: how fast it reads, relative to the others.
    """

    free: int = 0
    speed: float = 1.0

    def fits(self, size: int) -> bool:
        """Whether so many bytes leave some head-room."""
        return self.free == 0 or size <= self.free * (1 - HEADROOM)


def balance(items: Sequence[Item], rooms: Sequence[Room]) -> list[int]:
    """Cut a row of layers into one run for each device, so that the slowest is as fast as can be.

    Of all such cuts the one whose stages are most alike is taken, so that a fast device does not
    idle because another one is slow.

    Args:
        items: the layers in their order.
        rooms: the devices in the order of the stages, at least one.

    Returns:
        Number of layers of each device; it may be 0.

    Raises:
        CallerError: the layers do not fit; says how much there is and how much is needed.
    """
    plan = _Cuts(items, rooms)
    slowest = plan.least_maximum()
    if slowest is None:
        raise CallerError(_no_room(items, rooms))
    return plan.most_even(slowest)


def _no_room(items: Sequence[Item], rooms: Sequence[Room]) -> str:
    needed = sum(item.size for item in items) / 1e9
    free = ", ".join(f"{room.free / 1e9:.2f}" for room in rooms)
    return (
        f"the model and its KV cache take {needed:.2f} GB in runs of whole layers and the devices "
        f"have {free} GB free: add nodes, lower -c, or give the split with -ts"
    )


class _Cuts:
    """All ways to cut the row; a table by device and by how many layers are placed already."""

    def __init__(self, items: Sequence[Item], rooms: Sequence[Room]) -> None:
        self._rooms = rooms
        self._count = len(items)
        self._reads = [0, *accumulate(item.read for item in items)]
        self._sizes = [0, *accumulate(item.size for item in items)]

    def _time(self, room: Room, begin: int, end: int) -> float | None:
        """How long a token takes for the layers from `begin` to `end`; None: they do not fit."""
        if not room.fits(self._sizes[end] - self._sizes[begin]):
            return None
        return (self._reads[end] - self._reads[begin]) / room.speed

    def least_maximum(self) -> float | None:
        """The shortest time of the slowest stage; None: the layers do not fit."""
        best: list[float | None] = [0.0, *[None] * self._count]
        for room in self._rooms:
            best = [
                min(
                    (
                        max(before, time)
                        for begin, before in enumerate(best[: end + 1])
                        if before is not None and (time := self._time(room, begin, end)) is not None
                    ),
                    default=None,
                )
                for end in range(self._count + 1)
            ]
        return best[-1]

    def most_even(self, slowest: float) -> list[int]:
        """Of the cuts in which no stage takes longer, the one with the least sum of squares."""
        best: list[tuple[float, list[int]] | None] = [(0.0, []), *[None] * self._count]
        for room in self._rooms:
            best = [
                min(
                    (
                        (before[0] + time * time, [*before[1], end - begin])
                        for begin, before in enumerate(best[: end + 1])
                        if before is not None
                        and (time := self._time(room, begin, end)) is not None
                        and time <= slowest
                    ),
                    default=None,
                )
                for end in range(self._count + 1)
            ]
        assert best[-1] is not None
        return best[-1][1]
