"""One time budget carried through many waits. Seconds."""

from __future__ import annotations

import time

__all__ = ["Deadline"]


class Deadline:
    """A moment in the future; `None` seconds means that there is none."""

    __slots__ = ("_end", "seconds")

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self._end = None if seconds is None else time.monotonic() + seconds

    def left(self) -> float | None:
        """Seconds left, at least 0; None where there is no end."""
        return None if self._end is None else max(0.0, self._end - time.monotonic())

    def left_ms(self) -> int | None:
        """Milliseconds left for poll(), rounded up; None where there is no end."""
        left = self.left()
        return None if left is None else int(left * 1000 + 0.999)

    def passed(self) -> bool:
        """Whether the time is over."""
        return self._end is not None and time.monotonic() >= self._end
