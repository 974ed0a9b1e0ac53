"""The client's end: the commands of a step become one small body."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ringline.errors import CallerError
from ringline.wire.commands import Command
from ringline.wire.thin.channels import Channels
from ringline.wire.thin.codes import deflate, put_varint
from ringline.wire.thin.definitions import define
from ringline.wire.thin.descriptors import DescriptorWriter
from ringline.wire.thin.fields import Form, encode_field
from ringline.wire.thin.graphs import Graphs
from ringline.wire.thin.layouts import MOST_COMMANDS, MOST_DECODED, Kind, accepts, shape
from ringline.wire.thin.skeletons import (
    MOST_KEPT_COMMANDS,
    MOST_SKELETONS,
    Item,
    Piece,
    Skeleton,
)
from ringline.wire.thin.steps import (
    DEFLATED,
    DIGEST,
    MOST_INFLATED,
    NEW,
    RESET,
    STEPS_PER_DIGEST,
    Digest,
)
from ringline.wire.thin.tables import Table
from ringline.wire.thin.tickets import Chains

__all__ = ["Encoder"]

#: a shorter rest is not deflated.
_LEAST_DEFLATED: Final = 64
_LEVEL: Final = 6


class _State:
    """What a Decoder knows too, if it has got every step so far."""

    __slots__ = ("chains", "channels", "descriptors", "graphs", "numbers", "skeletons")

    def __init__(self) -> None:
        self.descriptors = DescriptorWriter()
        self.skeletons: Table[Skeleton] = Table(MOST_SKELETONS)
        self.numbers: dict[tuple[Piece, ...], int] = {}
        self.channels = Channels()
        self.chains = Chains()
        self.graphs = Graphs()


class Encoder:
    """Codes the steps of one connection. Every body it makes must be decoded, in the same order."""

    __slots__ = ("_digest", "_fresh", "_state", "_steps")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget everything; the next body tells the decoder to forget everything too."""
        self._state = _State()
        self._digest = Digest()
        self._steps = 0  # since the last digest
        self._fresh = True

    @staticmethod
    def accepts(command: int, size: int) -> bool:
        """Whether a step may hold this command with a body of `size` bytes."""
        return accepts(command, size)

    def encode(self, commands: Sequence[tuple[Command, bytes]]) -> bytes:
        """The body of one STEP that holds these commands, at most 256, of 60 MiB in all.

        Raises:
            CallerError: a command is not accepted, or there are too many; nothing is changed.
        """
        pieces, values = _split(commands)
        flags = 0
        rest = bytearray()
        skeleton = self._known(pieces, rest)
        if skeleton is None:
            flags |= NEW
            skeleton = self._define(pieces, rest)
        worth = self._encode_items(skeleton.items, values, rest) or flags
        if worth and _LEAST_DEFLATED <= len(rest) <= MOST_INFLATED:
            packed = _deflated(rest)
            if len(packed) < len(rest):
                flags |= DEFLATED
                rest = packed
        return self._frame(flags, commands, rest)

    def _known(self, pieces: tuple[Piece, ...], rest: bytearray) -> Skeleton | None:
        state = self._state
        number = state.numbers.get(pieces)
        if number is None:
            return None
        put_varint(rest, number)
        state.skeletons.use(number)
        return state.skeletons.values[number]

    def _define(self, pieces: tuple[Piece, ...], rest: bytearray) -> Skeleton:
        state = self._state
        define(pieces, state.descriptors, rest)
        skeleton = Skeleton(pieces)
        if len(pieces) <= MOST_KEPT_COMMANDS:
            state.numbers[pieces], gone = state.skeletons.add(skeleton)
            if gone is not None:
                del state.numbers[gone.pieces]
        return skeleton

    def _encode_items(self, items: list[Item], values: list[bytes], rest: bytearray) -> bool:
        """Write the mask and the codes; True: they may be worth deflating."""
        state, mask, codes, worth = self._state, 0, bytearray(), False
        for bit, (item, value) in enumerate(zip(items, values, strict=True)):
            start = len(codes)
            if item.kind is Kind.DATA:
                predicted = encode_field(state.channels.of(item), value, codes)
                # A list of runs has gaps much alike, other codes have not.
                long = len(codes) - start >= _LEAST_DEFLATED
                worth |= long and codes[start] % 16 == Form.RUNS
            elif item.kind is Kind.TICKET:
                predicted = state.chains.encode(item, value, codes)
            else:
                predicted = state.graphs.encode(item, value, codes)
                worth |= not predicted
            mask |= predicted << bit
        rest += mask.to_bytes((len(items) + 7) // 8, "little")
        rest += codes
        return worth

    def _frame(
        self, flags: int, commands: Sequence[tuple[Command, bytes]], rest: bytearray
    ) -> bytes:
        self._digest.add(commands)
        self._steps += 1
        digest = b""
        if self._fresh or self._steps == STEPS_PER_DIGEST:
            flags |= DIGEST | (RESET if self._fresh else 0)
            digest = self._digest.take()
            self._steps, self._fresh = 0, False
        return b"".join((bytes((flags,)), digest, rest))


def _split(
    commands: Sequence[tuple[Command, bytes]],
) -> tuple[tuple[Piece, ...], list[bytes]]:
    """The skeleton's pieces, and the value of each item."""
    pieces: list[Piece] = []
    values: list[bytes] = []
    total = 0
    for command, body in commands:
        size = len(body)
        total += size
        made = shape(command, size)
        if made is None:
            raise CallerError(
                f"{command!r} of {size} bytes cannot be part of a step, send it alone"
            )
        constants = []
        for kind, start, stop in made.segments:
            part = body[start:stop]
            if kind is Kind.CONSTANT:
                constants.append(part)
            else:
                values.append(part)
        pieces.append((made, tuple(constants)))
    if len(pieces) > MOST_COMMANDS or total > MOST_DECODED:
        raise CallerError(
            f"a step of {len(pieces)} commands and {total} bytes is too large, send several "
            f"of at most {MOST_COMMANDS} commands and {MOST_DECODED} bytes"
        )
    return tuple(pieces), values


def _deflated(rest: bytearray) -> bytearray:
    packed = bytearray()
    put_varint(packed, len(rest))
    packed += deflate(rest, _LEVEL)
    return packed
