"""Session processes that died: counted, and a pause for an address whose sessions keep dying.

A process that a client's commands kill costs a fork and a line in the log, and nobody else
notices. Done in a loop it costs that all the time, so the next session of such an address has to
wait: not after one crash (that happens, and many clients may live behind one address), but from the
second on, each time twice as long, up to a bound. An address that has not crashed for a while is
forgiven. No other address waits, and what is under way at this one goes on. Times are seconds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from ringline.errors import RefusedError
from ringline.server.limits import CRASH_FORGIVEN, CRASH_LONGEST_PAUSE, MOST_CRASHERS

__all__ = ["Crashes"]


@dataclass(slots=True)
class _Crasher:
    """An address whose sessions have crashed.

    Attributes:
        crashes: how many in all; in_a_row: without a quiet while between two.
        last: when the last one was; until: no session before; how: the last one, in words.
    """

    crashes: int = 0
    in_a_row: int = 0
    last: float = 0.0
    until: float = 0.0
    how: str = ""


class Crashes:
    """The crashes of a node since its start. Counters only grow; a reader takes rates.

    Args:
        pause: the first pause; 0: nobody ever has to wait.
        clock: seconds that only grow.

    Attributes:
        total: sessions that crashed.
        by_cause: the same by how they ended: the name of a signal, or "exit code N".
        turned_away: sessions that had to wait.
    """

    def __init__(self, pause: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.total = 0
        self.by_cause: Counter[str] = Counter()
        self.turned_away = 0
        self._pause = pause
        self._clock = clock
        self._crashers: dict[str, _Crasher] = {}  # who crashed last stands last

    def by_origin(self) -> dict[str, int]:
        """Crashes of the addresses that crashed last, at most MOST_CRASHERS of them."""
        return {origin: crasher.crashes for origin, crasher in self._crashers.items()}

    def note(self, origin: str, cause: str, doing: str) -> float:
        """A session has crashed.

        Args:
            origin: of its client, see origin.py.
            cause: the name of the signal, or the exit code in words.
            doing: the command that it did.

        Returns:
            How long its address has to wait.
        """
        self.total += 1
        self.by_cause[cause] += 1
        now = self._clock()
        crasher = self._crashers.pop(origin, None) or _Crasher()
        self._crashers[origin] = crasher
        while len(self._crashers) > MOST_CRASHERS:
            del self._crashers[next(iter(self._crashers))]
        quiet = now - crasher.last > CRASH_FORGIVEN
        crasher.in_a_row = 1 if quiet else crasher.in_a_row + 1
        crasher.crashes += 1
        crasher.last, crasher.how = now, f"{cause} in {doing}"
        pause = self._after(crasher.in_a_row)
        crasher.until = now + pause
        return pause

    def check(self, origin: str) -> None:
        """Whether an address may begin a session.

        Raises:
            RefusedError: its sessions keep crashing, and it has not waited long enough.
        """
        crasher = self._crashers.get(origin)
        left = crasher.until - self._clock() if crasher else 0.0
        if crasher is None or left <= 0:
            return
        self.turned_away += 1
        raise RefusedError(
            f"{crasher.in_a_row} sessions from {origin} have crashed lately, the last by "
            f"{crasher.how}: the next one may begin in {left:.1f} s"
        )

    def _after(self, in_a_row: int) -> float:
        if in_a_row < 2:
            return 0.0
        return min(CRASH_LONGEST_PAUSE, self._pause * 2.0 ** min(in_a_row - 2, 32))
