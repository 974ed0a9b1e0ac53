"""What a session process is doing and has done, in memory that it shares with the gatekeeper.

A process that dies says nothing; what stands on its board then is what killed it, or was under way
beside it. A byte for each connection, written before and after each command.
"""

from __future__ import annotations

import mmap
from typing import Final

from ringline.server.tally import SHEET_SIZE
from ringline.wire.commands import Command

__all__ = ["Board"]

_NOTHING: Final = 0xFF
_NAMES: Final = {int(command): command.name for command in Command}


class Board:
    """Made before the fork, used on both sides of it. Visitors are connections, by number.

    Attributes:
        sheet: where the process counts what it costs, see tally.py; the ledger's.
    """

    def __init__(self, sheet: mmap.mmap | None = None) -> None:
        """A board with a sheet; None: one of its own."""
        self.sheet = mmap.mmap(-1, SHEET_SIZE) if sheet is None else sheet
        self._bytes = mmap.mmap(-1, mmap.PAGESIZE)
        self._bytes[:] = bytes([_NOTHING]) * mmap.PAGESIZE

    def begin(self, visitor: int, command: int) -> None:
        """A connection begins a command."""
        self._bytes[0] = self._bytes[self._place(visitor)] = command

    def done(self, visitor: int) -> None:
        """A connection waits for its next command."""
        self._bytes[self._place(visitor)] = _NOTHING

    def doing(self) -> str:
        """The commands that were under way; where none was, the last one; or "none"."""
        numbers = set(self._bytes[1:]) - {_NOTHING} or {self._bytes[0]}
        return ", ".join(sorted(filter(None, map(_NAMES.get, numbers)))) or "none"

    def close(self) -> None:
        """Give the memory of this side back, but for the sheet: ledger.py does."""
        self._bytes.close()

    def _place(self, visitor: int) -> int:
        return 1 + visitor % (mmap.PAGESIZE - 1)
