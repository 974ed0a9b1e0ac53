"""The node's end: a body becomes the commands that it was made of."""

from __future__ import annotations

from typing import Final

from ringline.errors import ProtocolError
from ringline.wire.commands import Command
from ringline.wire.thin.channels import Channels
from ringline.wire.thin.codes import Reader, inflate, wrong
from ringline.wire.thin.definitions import read_definition
from ringline.wire.thin.descriptors import DescriptorReader
from ringline.wire.thin.fields import decode_field
from ringline.wire.thin.graphs import Graphs
from ringline.wire.thin.layouts import MOST_DECODED, Kind
from ringline.wire.thin.skeletons import MOST_KEPT_COMMANDS, MOST_SKELETONS, Item, Skeleton
from ringline.wire.thin.steps import (
    DEFLATED,
    DIGEST,
    DIGEST_SIZE,
    MOST_INFLATED,
    NEW,
    RESET,
    Digest,
)
from ringline.wire.thin.tables import Table
from ringline.wire.thin.tickets import Chains

__all__ = ["Decoder"]

_ALL_FLAGS: Final = RESET | DIGEST | NEW | DEFLATED


class _State:
    """What the Encoder knows too."""

    __slots__ = ("chains", "channels", "descriptors", "digest", "graphs", "skeletons")

    def __init__(self) -> None:
        self.descriptors = DescriptorReader()
        self.skeletons: Table[Skeleton] = Table(MOST_SKELETONS)
        self.channels = Channels()
        self.chains = Chains()
        self.graphs = Graphs()
        self.digest = Digest()


class Decoder:
    """Decodes the steps of one connection, in the order in which they were encoded."""

    __slots__ = ("_state",)

    def __init__(self) -> None:
        self._state: _State | None = None

    def decode(self, body: bytes | memoryview) -> list[tuple[Command, bytes]]:
        """The commands of one STEP, with their bodies.

        A graph that is repeated is the very same object as before.

        Raises:
            ProtocolError: the body makes no sense, or the ends do not agree. The decoder is of no
                more use then, until a step begins anew.
        """
        reader = Reader(bytes(body))
        flags = reader.byte()
        if flags & ~_ALL_FLAGS:
            raise wrong(f"its flags are {flags:#x}")
        state = _State() if flags & RESET else self._state
        if state is None:
            raise wrong("it is the first one, or follows a failed one, and is no new beginning")
        # Until this step has been decoded, there is no state to go on from.
        self._state = None
        commands = _decode(state, flags, reader)
        self._state = state
        return commands


def _decode(state: _State, flags: int, reader: Reader) -> list[tuple[Command, bytes]]:
    digest = reader.take(DIGEST_SIZE) if flags & DIGEST else None
    if flags & DEFLATED:
        size = reader.varint(MOST_INFLATED)
        reader = Reader(inflate(reader.rest(), size))
    skeleton = _new_skeleton(state, reader) if flags & NEW else _known_skeleton(state, reader)
    values = _decode_items(state, skeleton, reader)
    reader.end()
    commands = skeleton.join(values)
    state.digest.add(commands)
    if digest is not None and state.digest.take() != digest:
        raise ProtocolError(
            "the two ends of the connection do not agree on what was sent before",
            command=Command.STEP.name,
        )
    return commands


def _new_skeleton(state: _State, reader: Reader) -> Skeleton:
    skeleton = Skeleton(tuple(read_definition(reader, state.descriptors)))
    if len(skeleton.bodies) <= MOST_KEPT_COMMANDS:
        state.skeletons.add(skeleton)
    return skeleton


def _known_skeleton(state: _State, reader: Reader) -> Skeleton:
    known = state.skeletons
    number = reader.varint()
    if number >= len(known.values):
        raise wrong(f"it names skeleton {number}, which was never told")
    known.use(number)
    return known.values[number]


def _decode_items(state: _State, skeleton: Skeleton, reader: Reader) -> list[bytes]:
    items = skeleton.items
    mask = int.from_bytes(reader.take((len(items) + 7) // 8), "little")
    if mask >> len(items):
        raise wrong("it marks more items than it has")
    room = MOST_DECODED - skeleton.size
    values: list[bytes] = []
    for item in items:
        if item.kind is Kind.GRAPH:
            value = _graph(state.graphs, item, reader, mask & 1, room)
            room -= len(value)
        else:
            value = _value(state, item, reader, mask & 1)
        values.append(value)
        mask >>= 1
    return values


def _graph(graphs: Graphs, item: Item, reader: Reader, predicted: int, room: int) -> bytes:
    body = graphs.predicted(item) if predicted else graphs.decode(item, reader, room)
    if len(body) > room:
        raise wrong("its commands are too large together")
    return body


def _value(state: _State, item: Item, reader: Reader, predicted: int) -> bytes:
    if item.kind is Kind.TICKET:
        chains = state.chains
        return chains.predicted(item) if predicted else chains.decode(item, reader)
    channel = state.channels.of(item)
    return channel.advance() if predicted else decode_field(channel, reader)
