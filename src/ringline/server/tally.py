"""Named counters in memory that two processes share: they outlive the process that counts.

A session process counts into a sheet, a mapping that the gatekeeper made before the fork; the
gatekeeper reads it at any time, and when the process has ended, however it did. One process writes
to a sheet, its threads through one Tally; many may read.

    sheet    reserved u64 | n_entries u64 | entries
    entry    name, 72 bytes, padded with 0 | value u64            native byte order

A name is `counter label`. An entry is counted in n_entries after it was written, so whoever reads
sees whole names. Labels may come from outside: of each counter so many have entries of their own,
and the rest is counted as "other". Times are nanoseconds, sizes bytes.
"""

from __future__ import annotations

import mmap
import struct
import threading
from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from ringline.errors import LibraryError, RefusedError
from ringline.server.limits import MOST_LABELS

__all__ = ["OTHER", "SHEET_SIZE", "Counter", "Counts", "Tally", "read_counts", "rule_of"]

#: the label of what has no entry of its own.
OTHER: Final = "other"
SHEET_SIZE: Final = 6 * mmap.PAGESIZE
_HEAD: Final = 16
_NAME: Final = 72
_ENTRY: Final = struct.Struct(f"={_NAME}sQ")
_MOST_ENTRIES: Final = (SHEET_SIZE - _HEAD) // _ENTRY.size
_WORD: Final = 8


class Counter(StrEnum):
    """What is counted; in brackets what the label is."""

    #: nanoseconds of computing [number of the device]
    BUSY = "busy"
    #: nanoseconds of waiting for a device [its number]
    LOCK_WAIT = "lock-wait"
    #: computations [number of the device]
    COMPUTED = "computed"
    #: nanoseconds that RECV_TENSOR waited [number of the device that holds the tensor]
    DATA_WAIT = "data-wait"
    #: bytes of tensors sent to another node [its endpoint]
    PEER_SENT = "peer-sent"
    #: bytes of tensors that came from another node [its address]
    PEER_RECEIVED = "peer-received"
    #: bytes of whole messages from and to clients
    CLIENT_RECEIVED = "client-received"
    CLIENT_SENT = "client-sent"
    #: requests that were refused [the rule]
    REFUSED = "refused"
    #: sessions that began, and sessions now: the gatekeeper's
    SESSIONS = "sessions"
    OPEN = "open"
    #: processes that died [signal or exit code]
    CRASHED = "crashed"
    #: connections that became no session's [why]
    HANDSHAKE = "handshake"


#: values by counter and label.
Counts = Mapping[tuple[str, str], int]


class Tally:
    """Counts into a sheet. Any thread of the process that owns it may."""

    def __init__(self, sheet: mmap.mmap | None = None) -> None:
        """Count into a sheet that is empty; None: into memory of one's own."""
        self._sheet = mmap.mmap(-1, SHEET_SIZE) if sheet is None else sheet
        #: guards everything below; held for a few instructions.
        self._lock = threading.Lock()
        self._words = memoryview(self._sheet).cast("B").cast("Q")
        self._places: dict[tuple[str, str], int] = {}
        self._labels: dict[str, int] = {}

    def add(self, counter: Counter, n: int, label: str = "") -> None:
        """Add to a counter."""
        with self._lock:
            place = self._places.get((counter, label))
            if place is None:
                place = self._new(counter, label)
            self._words[place] += n

    def set(self, counter: Counter, value: int, label: str = "") -> None:
        """Say what a counter that also falls is now."""
        with self._lock:
            place = self._places.get((counter, label))
            self._words[self._new(counter, label) if place is None else place] = value

    def counts(self) -> Counts:
        """All values."""
        return read_counts(self._sheet)

    def close(self) -> None:
        """Let go of the sheet, which is not closed: whoever made it does that."""
        self._words.release()

    def _new(self, counter: str, label: str) -> int:
        """Begin an entry, or find that of the other labels; where its value is, in words."""
        number = self._labels.get(counter, 0)
        if label != OTHER and (number >= MOST_LABELS or len(self._places) >= _MOST_ENTRIES - 32):
            other = self._places.get((counter, OTHER))
            return self._new(counter, OTHER) if other is None else other
        self._labels[counter] = number + 1
        count = self._words[1]
        start = _HEAD + count * _ENTRY.size
        name = f"{counter} {label}".encode("utf-8", "replace")[:_NAME]
        _ENTRY.pack_into(self._sheet, start, name, 0)
        self._words[1] = count + 1
        place = self._places[counter, label] = (start + _NAME) // _WORD
        return place


def read_counts(sheet: mmap.mmap) -> Counts:
    """All values of a sheet, whoever counts into it; nothing in it is trusted."""
    raw = sheet[:SHEET_SIZE]
    (count,) = struct.unpack_from("=Q", raw, _WORD)
    counts: dict[tuple[str, str], int] = {}
    for index in range(min(count, _MOST_ENTRIES)):
        name, value = _ENTRY.unpack_from(raw, _HEAD + index * _ENTRY.size)
        counter, _, label = name.rstrip(b"\0").decode("utf-8", "replace").partition(" ")
        counts[counter, label] = counts.get((counter, label), 0) + value
    return counts


def rule_of(error: RefusedError | LibraryError) -> str:
    """The rule that a refused request broke, as a short word for counting."""
    rule = error.rule if isinstance(error, RefusedError) else ""
    return rule or type(error).__name__.removesuffix("Error").lower()
