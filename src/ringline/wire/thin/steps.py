"""The frame of a STEP's body, and the digest that shows whether both ends still agree.

flags u8 | digest u32, where DIGEST | rest
rest, where DEFLATED: size varint | deflated bytes of that size; else as it is:
    number of the skeleton varint, or its definition where NEW
    one bit an item, the lowest first, in whole bytes: 1 is "as predicted"
    the code of each item that is not as predicted
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Final

from ringline.wire.commands import Command

__all__ = [
    "DEFLATED",
    "DIGEST",
    "DIGEST_SIZE",
    "MOST_INFLATED",
    "NEW",
    "RESET",
    "STEPS_PER_DIGEST",
    "Digest",
]

# The bits of the first byte. Plain numbers: the operators of an IntFlag take microseconds.
#: forget everything first.
RESET: Final = 1
#: a digest follows the flags.
DIGEST: Final = 2
#: a skeleton is defined here.
NEW: Final = 4
#: the rest is deflated.
DEFLATED: Final = 8

#: a digest comes with the first step after a reset, and then with every 64th.
STEPS_PER_DIGEST: Final = 64
DIGEST_SIZE: Final = 4
#: the rest of a body is deflated only where it is not larger, bytes.
MOST_INFLATED: Final = 1 << 20

_ENTRY: Final = struct.Struct("<BQI")
_MOST_GRAPHS: Final = 4


class Digest:
    """CRC-32 over the commands since the last digest: of each `command u8, size u64, CRC-32 u32`.

    It guards against a fault of one end, not against an attacker, who may send any commands anyway.
    Not a hash: of a mask of some 100 KB that would cost more than all else.
    """

    __slots__ = ("_crc", "_graphs")

    def __init__(self) -> None:
        self._crc = 0
        # What the last graphs came to: one of 200 KB may be the same object in every step.
        self._graphs: list[tuple[bytes, int]] = []

    def add(self, commands: Sequence[tuple[Command, bytes]]) -> None:
        """Take in the commands of a step."""
        crc = self._crc
        for command, body in commands:
            graph = command == Command.GRAPH_COMPUTE
            own = self._of_graph(body) if graph else zlib.crc32(body)
            crc = zlib.crc32(_ENTRY.pack(command, len(body), own), crc)
        self._crc = crc

    def _of_graph(self, body: bytes) -> int:
        for other, crc in self._graphs:
            if other is body:
                return crc
        crc = zlib.crc32(body)
        self._graphs = [(body, crc), *self._graphs[: _MOST_GRAPHS - 1]]
        return crc

    def take(self) -> bytes:
        """The digest, 4 bytes; the next one begins."""
        crc, self._crc = self._crc, 0
        return crc.to_bytes(DIGEST_SIZE, "little")
