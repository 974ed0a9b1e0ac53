"""All sheets of a node: the gatekeeper's own, and one for each process that counts beside it.

The mappings are made before the first fork, so that the process that serves the metrics
(exporter.py) has them all. A session process keeps its own sheet alone: a broken graph that writes
over memory spoils no numbers but its own. When a process has ended, its counts go into the
gatekeeper's sheet and the sheet is used again.

A sum that is read while that happens would have counts twice, or not at all, and a counter that
falls looks like a restart to whoever takes rates. So the gatekeeper's changes stand between two
steps of a sequence number, and the reader begins again where it has changed.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from ringline.server.limits import WARM_PROCESSES
from ringline.server.tally import SHEET_SIZE, Counter, Counts, Tally, read_counts

__all__ = ["Ledger"]

#: more sessions than this are counted when they have ended: each sheet is a mapping.
_MOST_SHEETS: Final = 512
#: the doorman, and processes that have ended and are not reaped yet.
_SPARE: Final = 3
_TRIES: Final = 200
_PAUSE: Final = 0.001
_WORD: Final = 8
#: a sheet that was written over says anything.
_KNOWN: Final = frozenset(map(str, Counter))


class Ledger:
    """Made by the gatekeeper before it forks.

    Attributes:
        tally: the gatekeeper's own counters.
    """

    def __init__(self, max_sessions: int) -> None:
        count = min(max_sessions + WARM_PROCESSES + _SPARE, _MOST_SHEETS)
        self._own = mmap.mmap(-1, SHEET_SIZE)
        self.tally = Tally(self._own)
        self._sheets = [mmap.mmap(-1, SHEET_SIZE) for _ in range(count)]
        self._free = list(reversed(range(count)))
        #: a sequence number u64, odd while counts move; then a byte for each sheet: is it in use.
        self._state = mmap.mmap(-1, _WORD + count)

    def take(self) -> mmap.mmap:
        """An empty sheet for a new process."""
        if not self._free:
            return mmap.mmap(-1, SHEET_SIZE)
        index = self._free.pop()
        self._state[_WORD + index] = 1
        return self._sheets[index]

    def give_back(self, sheet: mmap.mmap) -> None:
        """Its process has ended: keep what it counted."""
        with self._moving():
            for (counter, label), value in read_counts(sheet).items():
                if counter in _KNOWN:
                    self.tally.add(Counter(counter), value, label)
            index = next((i for i, known in enumerate(self._sheets) if known is sheet), None)
            if index is None:
                sheet.close()
                return
            sheet[:] = bytes(SHEET_SIZE)
            self._state[_WORD + index] = 0
            self._free.append(index)

    def keep_only(self, sheet: mmap.mmap) -> None:
        """In a session process: let go of everything but its own sheet."""
        self.tally.close()
        for mapping in (self._own, self._state, *self._sheets):
            if mapping is not sheet:
                mapping.close()

    def counts(self) -> Counts:
        """The sums over all sheets, at one moment; any process that has the mappings may ask."""
        found: Counts = {}
        for _ in range(_TRIES):
            before = self._state[:_WORD]
            found = self._sum()
            if before[0] % 2 == 0 and self._state[:_WORD] == before:
                break
            time.sleep(_PAUSE)
        return found

    def _sum(self) -> Counts:
        sheets = [self._own]
        sheets += [s for i, s in enumerate(self._sheets) if self._state[_WORD + i]]
        total: dict[tuple[str, str], int] = {}
        for sheet in sheets:
            for key, value in read_counts(sheet).items():
                total[key] = total.get(key, 0) + value
        return total

    @contextmanager
    def _moving(self) -> Iterator[None]:
        self._step()
        try:
            yield
        finally:
            self._step()

    def _step(self) -> None:
        number = int.from_bytes(self._state[:_WORD], "little") + 1
        self._state[:_WORD] = number.to_bytes(_WORD, "little")
