"""Tensor records that both ends know by number; a new one is told by what differs from another."""

from __future__ import annotations

from collections import deque
from typing import Final

import numpy as np

from ringline.wire.commands import TENSOR_SIZE
from ringline.wire.thin.codes import Reader, apply_runs, find_runs, put_varint, wrong
from ringline.wire.thin.tables import Table

__all__ = ["MOST_DESCRIPTORS", "DescriptorReader", "DescriptorWriter"]

MOST_DESCRIPTORS: Final = 4096

_RAW: Final = 0  # then the record
_LIKE: Final = 1  # then the number of another one, and runs
_KNOWN: Final = 2  # + the number
#: so many of the newest are looked at for one that differs least.
_NEWEST: Final = 64
_NAME: Final = slice(228, 292)


class DescriptorReader:
    """The decoder's side."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: Table[bytes] = Table(MOST_DESCRIPTORS)

    def decode(self, reader: Reader) -> bytes:
        """Read one record.

        Raises:
            ProtocolError: it names a record that was never told.
        """
        known = self._known
        code = reader.varint(len(known.values) + _KNOWN - 1)
        if code >= _KNOWN:
            known.use(code - _KNOWN)
            return known.values[code - _KNOWN]
        if code == _RAW:
            record = reader.take(TENSOR_SIZE)
        else:
            number = reader.varint()
            if number >= len(known.values):
                raise wrong(f"it names tensor record {number}, which was never told")
            target = bytearray(known.values[number])
            apply_runs(reader, target)
            record = bytes(target)
        known.add(record)
        return record


class DescriptorWriter:
    """The encoder's side."""

    __slots__ = ("_known", "_names", "_newest", "_numbers", "_rows")

    def __init__(self) -> None:
        self._known: Table[bytes] = Table(MOST_DESCRIPTORS)
        self._numbers: dict[bytes, int] = {}
        self._names: dict[bytes, int] = {}  # the last record of each name
        self._newest: deque[int] = deque(maxlen=_NEWEST)
        # The same records as an array, to compare one with many.  # [most, 296] u8
        self._rows = np.zeros((MOST_DESCRIPTORS, TENSOR_SIZE), np.uint8)

    def encode(self, record: bytes, out: bytearray) -> None:
        """Code one record."""
        number = self._numbers.get(record)
        if number is not None:
            self._known.use(number)
            put_varint(out, number + _KNOWN)
            return
        base = self._nearest(record)
        runs = find_runs(self._known.values[base], record, TENSOR_SIZE) if base >= 0 else None
        if runs is not None and len(runs) < TENSOR_SIZE - 2:
            put_varint(out, _LIKE)
            put_varint(out, base)
            out += runs
        else:
            put_varint(out, _RAW)
            out += record
        self._add(record)

    def _nearest(self, record: bytes) -> int:
        candidates = list(self._newest)
        if record[_NAME] in self._names:
            candidates.append(self._names[record[_NAME]])
        if not candidates:
            return -1
        differing = np.count_nonzero(
            self._rows[candidates] != np.frombuffer(record, np.uint8), axis=1
        )
        return candidates[int(differing.argmin())]

    def _add(self, record: bytes) -> None:
        number, gone = self._known.add(record)
        if gone is not None:
            del self._numbers[gone]
            if self._names.get(gone[_NAME]) == number:
                del self._names[gone[_NAME]]
        self._numbers[record] = number
        self._names[record[_NAME]] = number
        self._newest.append(number)
        self._rows[number] = np.frombuffer(record, np.uint8)
