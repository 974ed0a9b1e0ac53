"""How a new skeleton is told: count, then for each command its number, size and constants.

The records at the start of a body are told by descriptors, the other constants as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringline.wire.commands import TENSOR_SIZE
from ringline.wire.thin.codes import Reader, put_varint, wrong
from ringline.wire.thin.descriptors import DescriptorReader, DescriptorWriter
from ringline.wire.thin.layouts import (
    GRAPH,
    MOST_BODY,
    MOST_COMMANDS,
    MOST_DECODED,
    Kind,
    Shape,
    shape,
)
from ringline.wire.thin.skeletons import Piece

__all__ = ["define", "read_definition"]


def define(pieces: Sequence[Piece], descriptors: DescriptorWriter, out: bytearray) -> None:
    """Write the definition of a skeleton."""
    put_varint(out, len(pieces))
    for made, constants in pieces:
        out.append(made.command)
        if made is not GRAPH:
            put_varint(out, made.size)
        at = 0
        for _ in range(made.records):
            descriptors.encode(constants[0][at : at + TENSOR_SIZE], out)
            at += TENSOR_SIZE
        for constant in constants:
            out += constant[at:]
            at = 0


def read_definition(reader: Reader, descriptors: DescriptorReader) -> list[Piece]:
    """Read what define() wrote.

    Raises:
        ProtocolError: it makes no sense, or its commands are too large together.
    """
    room = MOST_DECODED
    pieces: list[Piece] = []
    for _ in range(reader.varint(MOST_COMMANDS)):
        made = _read_shape(reader)
        room -= made.size
        if room < 0:
            raise wrong("its commands are too large together")
        pieces.append((made, _read_constants(reader, made, descriptors)))
    return pieces


def _read_shape(reader: Reader) -> Shape:
    number = reader.byte()
    if number == GRAPH.command:
        return GRAPH
    size = reader.varint(MOST_BODY)
    made = shape(number, size)
    if made is None:
        raise wrong(f"it holds command {number} of {size} bytes, which no step may hold")
    return made


def _read_constants(
    reader: Reader, made: Shape, descriptors: DescriptorReader
) -> tuple[bytes, ...]:
    head = b"".join([descriptors.decode(reader) for _ in range(made.records)])
    constants = []
    for segment in made.segments:
        if segment.kind is Kind.CONSTANT:
            constants.append(head + reader.take(segment.stop - segment.start - len(head)))
            head = b""
    return tuple(constants)
