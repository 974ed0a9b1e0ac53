"""Tables that both ends of a connection keep alike: the same values under the same numbers.

Whatever one end does with a table, the other does too, in the same order; so both throw out the
same value when a table is full, and no message is needed for it.
"""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Table"]

T = TypeVar("T")


class Table(Generic[T]):
    """At most `most` values, numbered from 0. A new one replaces the one not used for longest."""

    __slots__ = ("_most", "_order", "values")

    def __init__(self, most: int) -> None:
        self._most = most
        self._order: dict[int, None] = {}  # numbers, the one not used for longest first
        #: value by number.
        self.values: list[T] = []

    def add(self, value: T) -> tuple[int, T | None]:
        """Take in a value: its number, and the value that had to go for it, if one had."""
        if len(self.values) < self._most:
            number, gone = len(self.values), None
            self.values.append(value)
        else:
            number = next(iter(self._order))
            gone, self.values[number] = self.values[number], value
        self.use(number)
        return number, gone

    def use(self, number: int) -> None:
        """Note that the value of this number was used."""
        self._order.pop(number, None)
        self._order[number] = None
