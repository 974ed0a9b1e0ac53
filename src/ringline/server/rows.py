"""The tables of rows of one session: filled part by part, read by row. Sizes are bytes.

A table belongs to the session and all its connections; what one of them has sent, each may use. It
is of use when all its bytes have come, in order. Whoever reads a table keeps its memory: a new one
under the same number takes nothing away from a command that is under way.
"""

from __future__ import annotations

import mmap
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringline.errors import RefusedError
from ringline.ggml.rows import has_rows, row_size
from ringline.server.limits import MOST_ROW_WIDTH, MOST_TABLE_BYTES, MOST_TABLES
from ringline.wire.rows import RowTable

__all__ = ["RowTables", "Table", "available_memory"]

_MEMINFO: Final = Path("/proc/meminfo")


@dataclass(slots=True, eq=False)
class Table:
    """One table.

    Attributes:
        number: the client's number for it.
        kind: ggml_type; width: elements of a row; n_rows: how many.
        row_size: bytes of a row.
        memory: all rows, one after another.
        filled: how many bytes have come.
    """

    number: int
    kind: int
    width: int
    n_rows: int
    row_size: int
    memory: memoryview
    filled: int = 0

    def fits(self, part: RowTable) -> bool:
        """Whether a part says the same about the table as its first part did."""
        return (part.kind, part.width, part.n_rows) == (self.kind, self.width, self.n_rows)

    def take(self, part: RowTable, data: memoryview) -> None:
        """Add the next part.

        Raises:
            RefusedError: it is not the next one, or longer than the rest of the table.
        """
        if part.offset != self.filled:
            raise RefusedError(
                f"a part at {part.offset} of table {self.number} came where {self.filled} is next"
            )
        if len(data) > len(self.memory) - self.filled:
            raise RefusedError(
                f"{len(data)} bytes at {self.filled} are outside table {self.number} of "
                f"{len(self.memory)} bytes"
            )
        self.memory[self.filled : self.filled + len(data)] = data
        self.filled += len(data)


class RowTables:
    """The tables of a session, shared by the threads of its connections."""

    def __init__(self) -> None:
        #: guards every change of _tables and of the tables in it; get() reads without it, since
        #: a table is whole before its number of bytes says so.
        self._lock = threading.Lock()
        self._tables: dict[int, Table] = {}

    def put(self, part: RowTable, data: memoryview) -> None:
        """Take a part of a table; the first one makes room for all of it.

        Raises:
            RefusedError: a table that cannot be, no room, or not the part that is next.
        """
        if not len(data):
            raise RefusedError(f"a part of table {part.table} holds no bytes")
        with self._lock:
            table = self._tables.get(part.table) if part.offset else self._begin(part)
            if table is None:
                raise RefusedError(f"table {part.table} has no first part, at offset 0")
            if not table.fits(part):
                raise RefusedError(f"a part of table {part.table} names another type or shape")
            table.take(part, data)

    def get(self, number: int) -> Table:
        """A table that has come whole.

        Raises:
            RefusedError: there is none, or parts of it have not come.
        """
        table = self._tables.get(number)
        if table is None:
            raise RefusedError(f"this session has no table {number}")
        if table.filled < len(table.memory):
            raise RefusedError(
                f"{table.filled} of the {len(table.memory)} bytes of table {number} have come"
            )
        return table

    def _begin(self, part: RowTable) -> Table:
        """A new table in the place of the one that had its number, if any; the lock is held."""
        step = _row_size(part)
        size = step * part.n_rows
        others = [table for number, table in self._tables.items() if number != part.table]
        if len(others) >= MOST_TABLES:
            text = f"this session has {MOST_TABLES} tables already, its limit"
            raise RefusedError(text, rule="limit-tables")
        left = MOST_TABLE_BYTES - sum(len(table.memory) for table in others)
        room = min(left, available_memory())
        if size > room:
            raise RefusedError(
                f"table {part.table} of {size} bytes has no room: {max(0, room)} are left",
                rule="limit-tables",
            )
        memory = _map(part.table, size)
        table = Table(part.table, part.kind, part.width, part.n_rows, step, memory)
        self._tables[part.table] = table
        return table


def available_memory() -> int:
    """Bytes that this machine can give without swapping; our own limit where it does not say."""
    try:
        lines = _MEMINFO.read_text("ascii").splitlines()
    except OSError:
        return MOST_TABLE_BYTES
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) << 10 if found else MOST_TABLE_BYTES


def _row_size(part: RowTable) -> int:
    """Bytes of a row of the table that a part describes.

    Raises:
        RefusedError: a type without rows, or a shape that cannot be.
    """
    if not has_rows(part.kind):
        raise RefusedError(f"rows of type {part.kind} cannot be turned into f32")
    if not 1 <= part.width <= MOST_ROW_WIDTH:
        raise RefusedError(
            f"rows of {part.width} elements: a table has rows of 1 to {MOST_ROW_WIDTH}"
        )
    step = row_size(part.kind, part.width)
    if step is None:
        raise RefusedError(f"a row of {part.width} elements holds no whole blocks")
    if not part.n_rows:
        raise RefusedError(f"table {part.table} has no rows")
    return step


def _map(number: int, size: int) -> memoryview:
    """Fresh memory from the kernel: it costs nothing before it is written, and goes back whole.

    Raises:
        RefusedError: the kernel has none.
    """
    try:
        return memoryview(mmap.mmap(-1, size))
    except (OSError, ValueError, OverflowError) as error:
        raise RefusedError(f"no memory for table {number} of {size} bytes ({error})") from None
