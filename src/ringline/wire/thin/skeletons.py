"""The skeleton of a step: its commands with all that stays the same from step to step.

A skeleton has items, the parts of the bodies that change; each remembers how it was coded last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ringline.wire.commands import TENSOR_SIZE, Command
from ringline.wire.thin.layouts import Kind, Shape

__all__ = ["MOST_KEPT_COMMANDS", "MOST_SKELETONS", "ChannelKey", "Item", "Piece", "Skeleton"]

MOST_SKELETONS: Final = 256
#: a step of more commands has a skeleton that is used once and not kept.
MOST_KEPT_COMMANDS: Final = 64

#: command, segment, name of the tensor, what else is constant, size, type of the elements.
ChannelKey = tuple[int, int, bytes, bytes, int, str]
#: a command and its constants.
Piece = tuple[Shape, tuple[bytes, ...]]

_TYPE: Final = slice(8, 12)
_NAME: Final = slice(228, 292)
#: ggml_type -> element, where it is not bytes.
_ELEMENTS: Final[dict[int, np.dtype[np.generic]]] = {
    0: np.dtype("<u4"),  # F32
    1: np.dtype("<u2"),  # F16
    26: np.dtype("<i4"),  # I32
    27: np.dtype("<i8"),  # I64
    30: np.dtype("<u2"),  # BF16
}
_BYTE: Final[np.dtype[np.generic]] = np.dtype("u1")
_I32: Final[np.dtype[np.generic]] = np.dtype("<i4")


class Item:
    """One part of a step that changes.

    Attributes:
        kind: what it is.
        size: bytes; 0 for a graph.
        key, element: of data: the channel, and the type of its elements.
        last: the chain or the graph that was used last; None at first.
    """

    __slots__ = ("element", "key", "kind", "last", "size")

    def __init__(
        self, kind: Kind, size: int, key: ChannelKey, element: np.dtype[np.generic]
    ) -> None:
        self.kind = kind
        self.size = size
        self.key = key
        self.element = element
        self.last: int | None = None


class Skeleton:
    """A sequence of commands without what changes.

    Attributes:
        pieces: what it was made of.
        items: the parts that change, in order.
        size: bytes of all bodies, graphs not counted.
        bodies: per command what its body is joined from; None stands for an item.
    """

    __slots__ = ("bodies", "items", "pieces", "size")

    def __init__(self, pieces: tuple[Piece, ...]) -> None:
        self.pieces = pieces
        self.size = sum(shape.size for shape, _ in pieces)
        self.items: list[Item] = []
        self.bodies: list[tuple[Command, tuple[bytes | None, ...]]] = []
        for shape, constants in pieces:
            self._add(shape, constants)

    def _add(self, shape: Shape, constants: tuple[bytes, ...]) -> None:
        unused = iter(constants)
        head = constants[0] if shape.records else b""
        parts: list[bytes | None] = []
        for index, segment in enumerate(shape.segments):
            if segment.kind is Kind.CONSTANT:
                parts.append(next(unused))
                continue
            parts.append(None)
            size = segment.stop - segment.start
            element = _element(shape.command, head, size)
            place = (int(shape.command), index, _stem(head), head[TENSOR_SIZE:])
            self.items.append(Item(segment.kind, size, (*place, size, element.str), element))
        self.bodies.append((shape.command, tuple(parts)))

    def join(self, values: Sequence[bytes]) -> list[tuple[Command, bytes]]:
        """The commands, given the value of every item."""
        unused = iter(values)
        made = []
        for command, parts in self.bodies:
            if len(parts) == 1:
                # Not copied: a graph that is repeated shall be the very same object.
                body = parts[0] if parts[0] is not None else next(unused)
            else:
                body = b"".join([next(unused) if part is None else part for part in parts])
            made.append((command, body))
        return made


def _stem(record: bytes) -> bytes:
    """The tensor's name without the number of the copy: ggml calls copies name#0, name#1."""
    name = record[_NAME].split(b"\0", 1)[0]
    return name.rpartition(b"#")[0] or name


def _element(command: Command, record: bytes, size: int) -> np.dtype[np.generic]:
    element: np.dtype[np.generic] = _I32
    if command is Command.SET_TENSOR:
        element = _ELEMENTS.get(int.from_bytes(record[_TYPE], "little"), _BYTE)
    return _BYTE if size % element.itemsize else element
