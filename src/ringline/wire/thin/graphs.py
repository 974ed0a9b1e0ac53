"""The bodies of GRAPH_COMPUTE that both ends remember, and a new one told by what differs."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.wire.commands import RULES, Command
from ringline.wire.thin.codes import (
    Reader,
    apply_runs,
    deflate,
    find_runs,
    inflate,
    put_varint,
    wrong,
)
from ringline.wire.thin.layouts import MOST_BODY
from ringline.wire.thin.skeletons import Item

__all__ = ["MOST_GRAPHS", "MOST_GRAPH_BYTES", "Graphs"]

#: how many bodies are remembered, and how many bytes in all.
MOST_GRAPHS: Final = 32
MOST_GRAPH_BYTES: Final = 64 << 20

_WHOLE: Final = 0  # then the size, the deflated size, deflated bytes
_SAME: Final = 1  # + 2 * how many others were used since
_LIKE: Final = 2  # + 2 * how many others were used since, then runs
_LEVEL: Final = 1
_LEAST: Final = RULES[Command.GRAPH_COMPUTE].least


class Graphs:
    """A library of bodies; the one not used for longest goes when it is full."""

    __slots__ = ("_bodies", "_made", "_size")

    def __init__(self) -> None:
        self._bodies: dict[int, bytes] = {}  # by serial number, the one used last at the end
        self._made = 0
        self._size = 0

    def encode(self, item: Item, body: bytes, out: bytearray) -> bool:
        """Code one body; True: it is the one used last at this place, nothing was written."""
        if item.last is not None and self._bodies.get(item.last) == body:
            self._use(item, item.last)
            return True
        known = list(reversed(self._bodies.items()))
        for index, (number, other) in enumerate(known):
            if other == body:
                put_varint(out, _SAME + 2 * index)
                self._use(item, number)
                return False
        if not self._encode_runs([other for _, other in known], body, out):
            packed = deflate(body, _LEVEL)
            put_varint(out, _WHOLE)
            put_varint(out, len(body))
            put_varint(out, len(packed))
            out += packed
        self._add(item, body)
        return False

    @staticmethod
    def _encode_runs(known: list[bytes], body: bytes, out: bytearray) -> bool:
        new = np.frombuffer(body, np.uint8)
        best = (len(body) // 8, -1)
        for index, other in enumerate(known):
            if len(other) == len(body):
                differing = int(np.count_nonzero(np.frombuffer(other, np.uint8) != new))
                best = min(best, (differing, index))
        differing, index = best
        runs = find_runs(known[index], body, differing) if index >= 0 else None
        if runs is not None:
            put_varint(out, _LIKE + 2 * index)
            out += runs
        return runs is not None

    def predicted(self, item: Item) -> bytes:
        """The body that encode() wrote nothing for; the same object as before.

        Raises:
            ProtocolError: no body was used at this place, or it is forgotten.
        """
        body = self._bodies.get(item.last) if item.last is not None else None
        if item.last is None or body is None:
            raise wrong("a graph is said to be the one used last at its place, but there is none")
        self._use(item, item.last)
        return body

    def decode(self, item: Item, reader: Reader, room: int) -> bytes:
        """Read what encode() wrote; a body known before is the same object as then.

        Raises:
            ProtocolError: it makes no sense, or the body is larger than `room`.
        """
        code = reader.varint(2 * len(self._bodies))
        if code == _WHOLE:
            size = reader.varint(min(room, MOST_BODY))
            if size < _LEAST:
                raise wrong(f"a graph of {size} bytes is too small")
            body = inflate(reader.take(reader.varint()), size)
        else:
            number = list(reversed(self._bodies))[(code - 1) // 2]
            body = self._bodies[number]
            if len(body) > room:
                raise wrong("its commands are too large together")
            if code % 2 == _SAME:
                self._use(item, number)
                return body
            target = bytearray(body)
            apply_runs(reader, target)
            body = bytes(target)
        self._add(item, body)
        return body

    def _use(self, item: Item, number: int) -> None:
        item.last = number
        self._bodies[number] = self._bodies.pop(number)

    def _add(self, item: Item, body: bytes) -> None:
        while len(self._bodies) >= MOST_GRAPHS or self._size + len(body) > MOST_GRAPH_BYTES:
            self._size -= len(self._bodies.pop(next(iter(self._bodies))))
        self._made += 1
        item.last = self._made
        self._bodies[self._made] = body
        self._size += len(body)
