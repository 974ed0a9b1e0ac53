"""The small codes that a STEP is made of: varints, runs of differing bytes, deflated bytes.

A varint is LEB128: seven bits a byte, the lowest first, the top bit set on all but the last byte.
What is read comes from a peer: every count and length is checked before room is made for it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from ringline.errors import ProtocolError

__all__ = [
    "MOST_RUNS",
    "Reader",
    "apply_runs",
    "deflate",
    "find_runs",
    "inflate",
    "put_varint",
    "put_varints",
    "wrong",
]

#: a list of runs is at most this long; with more of them the bytes are coded in another way.
MOST_RUNS: Final = 4096
#: so many equal bytes between two runs are sent with them: a run of its own costs two bytes.
_JOINED: Final = 2
_MOST_VARINT: Final = (1 << 64) - 1


def wrong(cause: str) -> ProtocolError:
    """The error of a STEP that makes no sense."""
    return ProtocolError(cause, command="STEP")


class Reader:
    """Reads a STEP from front to back; every method raises ProtocolError where it is cut short."""

    __slots__ = ("_at", "_raw")

    def __init__(self, raw: bytes) -> None:
        self._raw = raw
        self._at = 0

    def byte(self) -> int:
        """The next byte.

        Raises:
            ProtocolError: there is none.
        """
        at = self._at
        if at >= len(self._raw):
            raise wrong(f"it ends after {at} bytes, in the middle of a value")
        self._at = at + 1
        return self._raw[at]

    def varint(self, most: int = _MOST_VARINT) -> int:
        """The next varint.

        Raises:
            ProtocolError: it is cut short or more than `most`.
        """
        value = self.byte()
        if value >= 0x80:
            value = self._long(value & 0x7F)
        if value > most:
            raise wrong(f"a number is {value} where at most {most} is allowed")
        return value

    def _long(self, value: int) -> int:
        for shift in range(7, 70, 7):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
        raise wrong("a number has more than 10 bytes")

    def take(self, size: int) -> bytes:
        """The next `size` bytes.

        Raises:
            ProtocolError: there are fewer.
        """
        at = self._at
        if size > len(self._raw) - at:
            raise wrong(f"it has {len(self._raw) - at} bytes left where {size} are announced")
        self._at = at + size
        return self._raw[at : at + size]

    def rest(self) -> bytes:
        """All bytes that are left."""
        return self.take(len(self._raw) - self._at)

    def end(self) -> None:
        """Check that nothing is left.

        Raises:
            ProtocolError: something is.
        """
        if self._at != len(self._raw):
            raise wrong(f"{len(self._raw) - self._at} bytes follow its end")


def put_varint(out: bytearray, value: int) -> None:
    """Append one varint."""
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def put_varints(values: Iterable[int]) -> bytearray:
    """Varints, one after another."""
    out = bytearray()
    for value in values:
        while value >= 0x80:
            out.append(value & 0x7F | 0x80)
            value >>= 7
        out.append(value)
    return out


def find_runs(old: bytes | bytearray, new: bytes, most: int) -> bytearray | None:
    """Where `new` differs from `old`, of the same length, as apply_runs() reads it.

    The code is `count`, then for each run `gap since the last one, length, bytes`.

    Args:
        old: what the other end has.
        new: what it shall have.
        most: None is answered when more than this many bytes differ, or at MOST_RUNS.
    """
    differs = np.frombuffer(old, np.uint8) != np.frombuffer(new, np.uint8)
    at = np.flatnonzero(differs)
    if not 0 < len(at) <= most:
        return None if len(at) else bytearray(1)
    breaks = np.flatnonzero(at[1:] - at[:-1] > _JOINED + 1)
    if len(breaks) >= MOST_RUNS:
        return None
    starts = [int(at[0]), *at[breaks + 1].tolist()]
    ends = [*(at[breaks] + 1).tolist(), int(at[-1]) + 1]
    out = bytearray()
    put_varint(out, len(starts))
    last = 0
    for start, end in zip(starts, ends, strict=True):
        put_varint(out, start - last)
        put_varint(out, end - start)
        out += new[start:end]
        last = end
    return out


def apply_runs(reader: Reader, target: bytearray) -> None:
    """Read what find_runs() wrote and put the bytes into `target`.

    Raises:
        ProtocolError: a run lies outside of `target`, or there are too many.
    """
    at, size = 0, len(target)
    for _ in range(reader.varint(MOST_RUNS)):
        at += reader.varint(size - at)
        length = reader.varint(size - at)
        target[at : at + length] = reader.take(length)
        at += length


def deflate(raw: bytes | bytearray, level: int) -> bytes:
    """Raw deflate: no header and no checksum, which the step's own digest makes superfluous."""
    packer = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(raw) + packer.flush()


def inflate(raw: bytes, size: int) -> bytes:
    """Undo deflate(); room is made for `size` bytes and no more.

    Raises:
        ProtocolError: it is not what deflate() makes of `size` bytes.
    """
    unpacker = zlib.decompressobj(-zlib.MAX_WBITS)
    try:
        # One byte more than wanted: with max_length = size the end mark may stay unread.
        made = unpacker.decompress(raw, size + 1)
    except zlib.error as error:
        raise wrong(f"deflated bytes cannot be read: {error}") from None
    if len(made) != size or not unpacker.eof or unpacker.unused_data:
        raise wrong(f"deflated bytes are not the announced {size}")
    return made
