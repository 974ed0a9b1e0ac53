"""Rows of logits that wait to be sampled: copies, so that the next graph may overwrite them.

Rows are [width] f32; sizes are bytes, unless a name says otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringline.errors import RefusedError
from ringline.server.limits import MOST_KEPT

__all__ = ["KeptRows"]

_F32_SIZE: Final = 4


class KeptRows:
    """The rows of one connection, numbered from 0; used by one thread."""

    def __init__(self) -> None:
        #: all rows one after another; reused from step to step.
        self._data: NDArray[np.float32] = np.zeros(0, np.float32)
        self._used = 0
        #: where each row begins, and its width; counts of f32.
        self._places: list[tuple[int, int]] = []
        self._consumed = False

    def __len__(self) -> int:
        return len(self._places)

    @property
    def width(self) -> int | None:
        """Width of the last row; None where there is none."""
        return self._places[-1][1] if self._places else None

    def check_room(self, size: int) -> None:
        """Check that so many bytes may be kept beside what is kept already.

        Raises:
            RefusedError: they may not.
        """
        used = 0 if self._consumed else self._used * _F32_SIZE
        if size > MOST_KEPT - used:
            raise RefusedError(
                f"{size} bytes of logits beside {used} that wait to be sampled, {MOST_KEPT} are "
                "allowed: sample them, or decode fewer rows at once",
                rule="limit-kept",
            )

    def keep(self, data: bytes | bytearray | memoryview, width: int) -> None:
        """Copy further rows; the first ones after consume() begin again at row 0.

        Args:
            data: whole rows that there is room for.
            width: how many logits a row has, 1 or more.
        """
        if self._consumed:
            self.clear()
        added = np.frombuffer(data, np.float32)
        start, end = self._used, self._used + len(added)
        self._make_room(end)
        self._data[start:end] = added
        self._used = end
        self._places += [(place, width) for place in range(start, end, width)]

    def _make_room(self, count: int) -> None:
        if count <= len(self._data):
            return
        most = MOST_KEPT // _F32_SIZE
        data = np.empty(min(most, max(count, 2 * len(self._data))), np.float32)
        data[: self._used] = self._data[: self._used]
        self._data = data

    def row(self, number: int) -> NDArray[np.float32]:
        """A row, [width] f32, valid until rows are kept.

        Raises:
            RefusedError: there is none of this number.
        """
        if not 0 <= number < len(self._places):
            raise RefusedError(f"there is no kept row {number}, there are {len(self._places)}")
        start, width = self._places[number]
        return self._data[start : start + width]

    def read(self, numbers: Sequence[int]) -> list[memoryview]:
        """The bytes of rows, valid until rows are kept.

        Raises:
            RefusedError: there is none of such a number, or that is too much at once.
        """
        rows = [self.row(number) for number in numbers]
        size = sum(row.nbytes for row in rows)
        if size > MOST_KEPT:
            text = f"{size} bytes in one READ_KEPT, {MOST_KEPT} are allowed"
            raise RefusedError(text, rule="limit-kept")
        return [row.data.cast("B") for row in rows]

    def consume(self) -> None:
        """They have been sampled: they stay as they are until the next ones come."""
        self._consumed = True

    def clear(self) -> None:
        """Forget all rows; their room stays."""
        self._places, self._used, self._consumed = [], 0, False

    def close(self) -> None:
        """Give the room back, too."""
        self.clear()
        self._data = np.zeros(0, np.float32)
