"""Level 5, rows by index: a table of quantised rows, sent once, and rows of it by number.

Same conventions as messages.py. A table is sent in parts; a SET_ROWS then costs 4 bytes a row
instead of 4 bytes an element.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from ringline.errors import ProtocolError
from ringline.wire.commands import TENSOR_SIZE, Command
from ringline.wire.messages import Message, Request

__all__ = ["DIGEST_SIZE", "CheckRows", "RowTable", "SetRows", "unpack_row_table"]

#: bytes of the blake2b digest that CHECK_ROWS answers.
DIGEST_SIZE: Final = 16
_ID_SIZE: Final = 4


@dataclass(frozen=True, slots=True)
class RowTable(Request):
    """What stands before a part of a table: which table, what it is, and where the part goes.

    Attributes:
        table: the client's number for it.
        kind: ggml_type of its rows; width: elements of a row; n_rows: how many rows.
        offset: where the part begins in the table, bytes; 0 makes the table anew.
    """

    COMMAND: ClassVar = Command.ROW_TABLE
    LAYOUT: ClassVar = struct.Struct("<IIIIQ")
    table: int
    kind: int
    width: int
    n_rows: int
    offset: int


@dataclass(frozen=True, slots=True)
class SetRows(Request):
    """Write rows `ids` of a table, as f32, to the beginning of `tensor`.

    Attributes:
        tensor: the packed record of a contiguous f32 tensor.
        table: number of a table that has come whole.
        ids: rows, 0 .. n_rows - 1; -1 - s is the token that sampler s sampled last.
    """

    COMMAND: ClassVar = Command.SET_ROWS
    LAYOUT: ClassVar = struct.Struct(f"<{TENSOR_SIZE}sII")
    tensor: bytes
    table: int
    ids: tuple[int, ...]

    def pack(self) -> bytes:
        """Fixed part, then the ids."""
        return self.LAYOUT.pack(self.tensor, self.table, len(self.ids)) + _pack_ids(self.ids)

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> SetRows:
        """Read a request.

        Raises:
            ProtocolError: it is cut short, or holds more or fewer ids than it announces.
        """
        return cls(*_with_ids(cls, raw))


@dataclass(frozen=True, slots=True)
class CheckRows(Request):
    """The digest of the f32 bytes that SET_ROWS would write: are they those that we gathered?"""

    COMMAND: ClassVar = Command.CHECK_ROWS
    LAYOUT: ClassVar = struct.Struct("<II")
    table: int
    ids: tuple[int, ...]

    @dataclass(frozen=True, slots=True)
    class Reply(Message):
        """blake2b with a digest of 16 bytes."""

        LAYOUT: ClassVar = struct.Struct(f"<{DIGEST_SIZE}s")
        digest: bytes

    def pack(self) -> bytes:
        """Fixed part, then the ids."""
        return self.LAYOUT.pack(self.table, len(self.ids)) + _pack_ids(self.ids)

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> CheckRows:
        """Read a request.

        Raises:
            ProtocolError: it is cut short, or holds more or fewer ids than it announces.
        """
        return cls(*_with_ids(cls, raw))


def unpack_row_table(raw: memoryview) -> tuple[RowTable, memoryview]:
    """Read the body of ROW_TABLE: what it says, and the part's bytes in place.

    Raises:
        ProtocolError: it is cut short.
    """
    return RowTable.unpack(raw), raw[RowTable.LAYOUT.size :]


def _pack_ids(ids: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(ids)}i", *ids)


def _with_ids(kind: type[Request], raw: bytes | memoryview) -> list[Any]:
    """Fields of a message whose layout ends in the number of ids, and the ids."""
    head = kind.LAYOUT.size
    if len(raw) < head:
        raise ProtocolError(f"{len(raw)} bytes are too few", command=kind.COMMAND.name)
    *fields, count = kind.LAYOUT.unpack_from(raw)
    size = len(raw) - head
    if size != _ID_SIZE * count:
        cause = f"{count} ids are announced, {size} bytes came"
        raise ProtocolError(cause, command=kind.COMMAND.name)
    return [*fields, struct.unpack_from(f"<{count}i", raw, head)]
