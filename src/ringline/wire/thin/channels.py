"""Channels: what was last written to a place, and what will probably be written there next.

A channel has two predictors. SAME says that nothing changes. NEXT counts on where the elements are
integers (positions, indices), and moves on where they are not (a mask gets one more zero a row).
Both are exact: they depend on the values before and on nothing else, at both ends alike.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.wire.thin.skeletons import Item

__all__ = [
    "MOST_CHANNELS",
    "MOST_CHANNEL_BYTES",
    "Base",
    "Channel",
    "Channels",
    "Counting",
    "Moving",
]

#: how many channels are kept, and how many bytes of last values in all.
MOST_CHANNELS: Final = 1024
MOST_CHANNEL_BYTES: Final = 64 << 20
#: where more elements than this change at once, nothing is expected to move on.
MOST_MOVED: Final = 4096

_NOWHERE: Final = np.empty(0, np.int64)


class Base(IntEnum):
    """What a value is told against."""

    SAME = 0
    NEXT = 1
    ZERO = 2


class Channel(ABC):
    """One place. `base` is the predictor used last.

    The rest belongs to the encoder alone: for how many values it will tell plain numbers without a
    search, at about which size, and for how many it will not try to deflate.
    """

    __slots__ = ("base", "element", "patience", "size", "trial_size", "trials")

    def __init__(self, size: int, element: np.dtype[np.generic]) -> None:
        self.size = size
        self.element = element
        self.base = Base.NEXT
        self.trials = self.trial_size = 0
        self.patience = 0

    @abstractmethod
    def guess(self, base: Base) -> bytes:
        """The value that `base` stands for."""

    @abstractmethod
    def update(self, value: bytes) -> None:
        """Take in the next value."""

    @abstractmethod
    def advance(self) -> bytes:
        """Take in the guess of `self.base` and answer it."""

    @abstractmethod
    def hit(self, value: bytes) -> bool:
        """Whether the guess of `self.base` is `value`; if so, take it in."""


class Counting(Channel):
    """Integers. NEXT adds the difference of the last two values, or 1 where there was only one."""

    __slots__ = ("_steps", "_value", "_values", "_written")

    def __init__(self, size: int, element: np.dtype[np.generic]) -> None:
        super().__init__(size, element)
        self._value = bytes(size)
        self._values: npt.NDArray[np.integer] = np.frombuffer(self._value, element)
        self._steps: npt.NDArray[np.integer] = np.ones(len(self._values), element)
        self._written = False

    def guess(self, base: Base) -> bytes:
        """The value that `base` stands for."""
        if base is Base.NEXT:
            return (self._values + self._steps).tobytes()
        return self._value if base is Base.SAME else bytes(self.size)

    def update(self, value: bytes) -> None:
        """Take in the next value."""
        values: npt.NDArray[np.integer] = np.frombuffer(value, self.element)
        if self._written:
            self._steps = values - self._values
        self._written = True
        self._value, self._values = value, values

    def advance(self) -> bytes:
        """Take in the guess of `self.base` and answer it."""
        value = self.guess(self.base)
        self._accept(value)
        return value

    def hit(self, value: bytes) -> bool:
        """Whether the guess of `self.base` is `value`; if so, take it in."""
        if self.guess(self.base) != value:
            return False
        self._accept(value)
        return True

    def _accept(self, value: bytes) -> None:
        if self.base is Base.NEXT and self._written:
            # The steps stay as they are: that is what the guess was made of.
            self._value, self._values = value, np.frombuffer(value, self.element)
        else:
            self.update(value)


class Moving(Channel):
    """Anything else. NEXT repeats the changes made last, as many elements further on as then."""

    __slots__ = ("_at", "_by", "_value", "_view", "_what")

    def __init__(self, size: int, element: np.dtype[np.generic]) -> None:
        super().__init__(size, element)
        self._value = bytearray(size)
        self._view = np.frombuffer(self._value, element)
        self._at = _NOWHERE  # which elements changed last  # [n] i64, ascending
        self._what = self._view[:0]  # and what they became  # [n]
        self._by = 1  # how far the changes moved from the time before

    def guess(self, base: Base) -> bytes:
        """The value that `base` stands for."""
        if base is Base.ZERO:
            return bytes(self.size)
        made = bytearray(self._value)
        if base is Base.NEXT:
            at, what = self._following()
            np.frombuffer(made, self.element)[at] = what
        return bytes(made)

    def update(self, value: bytes) -> None:
        """Take in the next value."""
        new = np.frombuffer(value, self.element)
        differs = self._view != new
        few = np.count_nonzero(differs) <= MOST_MOVED
        at = np.flatnonzero(differs) if few else _NOWHERE
        self._view[:] = new
        self._note(at, new[at])

    def advance(self) -> bytes:
        """Take in the guess of `self.base` and answer it."""
        if self.base is Base.NEXT:
            at, what = self._following()
            self._write(at, what, self._view[at])
        else:
            self._note(_NOWHERE, self._view[:0])
        return bytes(self._value)

    def hit(self, value: bytes) -> bool:
        """Whether the guess of `self.base` is `value`; if so, take it in."""
        if self.base is not Base.NEXT:
            if self._value != value:
                return False
            self._note(_NOWHERE, self._view[:0])
            return True
        at, what = self._following()
        before = self._view[at]
        # Written in place and taken back if wrong: a mask may be large, its changes are few.
        self._view[at] = what
        right = self._value == value
        self._view[at] = before
        if right:
            self._write(at, what, before)
        return right

    def _following(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.generic]]:
        at, what = self._at + self._by, self._what
        if len(at) and (at[0] < 0 or at[-1] >= len(self._view)):
            inside = (at >= 0) & (at < len(self._view))
            return at[inside], what[inside]
        return at, what

    def _write(
        self,
        at: npt.NDArray[np.int64],
        what: npt.NDArray[np.generic],
        before: npt.NDArray[np.generic],
    ) -> None:
        self._view[at] = what
        changed = before != what
        if len(at) == len(self._at) and changed.all():
            self._at = at  # moved as far as before, so the rest stays
        else:
            self._note(at[changed], what[changed])

    def _note(self, at: npt.NDArray[np.int64], what: npt.NDArray[np.generic]) -> None:
        """Keep what changed; it moved, if it is as many elements as before, all as far."""
        by = 1
        if 0 < len(at) == len(self._at):
            moved = at - self._at
            by = int(moved[0]) if moved[0] and (moved == moved[0]).all() else 1
        self._at, self._what, self._by = at, what, by


class Channels:
    """All channels of a connection; the one not used for longest goes when there are too many."""

    __slots__ = ("_channels", "_size")

    def __init__(self) -> None:
        self._channels: dict[object, Channel] = {}
        self._size = 0

    def of(self, item: Item) -> Channel:
        """The channel of an item, a new one where there is none."""
        channel = self._channels.pop(item.key, None)
        if channel is None:
            self._make_room(item.size)
            self._size += item.size
            kind = Counting if item.element.kind == "i" else Moving
            channel = kind(item.size, item.element)
        self._channels[item.key] = channel
        return channel

    def _make_room(self, size: int) -> None:
        while len(self._channels) >= MOST_CHANNELS or self._size + size > MOST_CHANNEL_BYTES:
            self._size -= self._channels.pop(next(iter(self._channels))).size
