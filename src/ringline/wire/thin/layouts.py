"""Which commands a STEP may hold, and how the body of each is taken apart.

A body is constants, which belong to the skeleton of a step, and items, which change with it: data,
a ticket, a graph. The table LAYOUTS says which bytes are what; a new command is a line in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final, NamedTuple

from ringline.wire.commands import RULES, TENSOR_SIZE, Command

__all__ = [
    "GRAPH",
    "LAYOUTS",
    "MOST_BODY",
    "MOST_COMMANDS",
    "MOST_DECODED",
    "Kind",
    "Layout",
    "Segment",
    "Shape",
    "accepts",
    "shape",
]

#: the commands of one STEP.
MOST_COMMANDS: Final = 256
#: the body of one command of a STEP, bytes.
MOST_BODY: Final = 16 << 20
#: the bodies of all commands of one STEP, bytes; the code of any such step fits in a STEP.
MOST_DECODED: Final = 60 << 20

_MOST_SHAPES: Final = 4096


class Kind(IntEnum):
    """What a part of a body is."""

    CONSTANT = 0
    DATA = 1
    TICKET = 2
    GRAPH = 3


@dataclass(frozen=True, slots=True)
class Layout:
    """How a body is laid out.

    Attributes:
        records: tensor records at its start; they are constants.
        parts: (kind, size in bytes) of its parts; size 0 is "all that is left", shared equally
            by the parts that say so.
        unit: what is left must be a multiple of this many bytes.
    """

    records: int
    parts: tuple[tuple[Kind, int], ...]
    unit: int = 1


class Segment(NamedTuple):
    """The bytes start to stop of a body."""

    kind: Kind
    start: int
    stop: int


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """A command whose body has a certain size, taken apart. Compared by identity, which is fast.

    Attributes:
        command: which.
        size: of its body, bytes; 0 for a graph, whose size is not part of its shape.
        records: tensor records at the start of the first segment.
        segments: all parts, in order; none is empty.
    """

    command: Command
    size: int
    records: int
    segments: tuple[Segment, ...]


_C, _D, _T, _G = Kind.CONSTANT, Kind.DATA, Kind.TICKET, Kind.GRAPH
_R: Final = TENSOR_SIZE

LAYOUTS: Final[dict[Command, Layout]] = {
    Command.FREE_BUFFER: Layout(0, ((_C, 0),)),
    Command.BUFFER_CLEAR: Layout(0, ((_C, 0),)),
    Command.SET_TENSOR: Layout(1, ((_C, _R + 9), (_D, 0))),
    Command.GET_TENSOR: Layout(1, ((_C, 0),)),
    Command.COPY_TENSOR: Layout(2, ((_C, 0),)),
    Command.GRAPH_COMPUTE: Layout(0, ((_G, 0),)),
    Command.GRAPH_RECOMPUTE: Layout(0, ((_C, 0),)),
    Command.MEMSET_TENSOR: Layout(1, ((_C, 0),)),
    Command.PING: Layout(0, ((_C, 0),)),
    Command.SEND_TENSOR: Layout(1, ((_C, _R + 16), (_T, 16), (_C, 0))),
    Command.RECV_TENSOR: Layout(1, ((_C, _R + 16), (_T, 16), (_C, 0))),
    Command.KEEP_ROWS: Layout(1, ((_C, 0),)),
    Command.SAMPLER_FREE: Layout(0, ((_C, 0),)),
    Command.SAMPLE: Layout(0, ((_D, 4), (_C, 4), (_D, 0), (_D, 0), (_D, 0)), 12),
    Command.SET_ROWS: Layout(1, ((_C, _R + 8), (_D, 0)), 4),
}

#: the one shape of all graphs: their size is told with them.
GRAPH: Final = Shape(Command.GRAPH_COMPUTE, 0, 0, (Segment(Kind.GRAPH, 0, MOST_BODY),))
#: (command, size) -> shape; made again when it is forgotten.
_SHAPES: Final[dict[tuple[int, int], Shape]] = {}


def accepts(command: int, size: int) -> bool:
    """Whether a STEP may hold this command with a body of `size` bytes."""
    return shape(command, size) is not None


def shape(command: int, size: int) -> Shape | None:
    """How the body of such a command is taken apart; None: a STEP may not hold it."""
    return _SHAPES.get((command, size)) or _make(command, size)


def _make(number: int, size: int) -> Shape | None:
    if number not in LAYOUTS:
        return None
    command = Command(number)
    layout, rule = LAYOUTS[command], RULES[command]
    left = size - sum(part for _, part in layout.parts)
    if not rule.least <= size <= min(rule.most, MOST_BODY) or left % layout.unit:
        return None
    made = GRAPH
    if command is not GRAPH.command:
        made = Shape(command, size, layout.records, _segments(layout, left))
    if len(_SHAPES) >= _MOST_SHAPES:
        _SHAPES.clear()
    return _SHAPES.setdefault((number, size), made)


def _segments(layout: Layout, left: int) -> tuple[Segment, ...]:
    share = left // max(1, sum(part == 0 for _, part in layout.parts))
    segments, at = [], 0
    for kind, part in layout.parts:
        stop = at + (part or share)
        if stop > at:
            segments.append(Segment(kind, at, stop))
        at = stop
    return tuple(segments)
