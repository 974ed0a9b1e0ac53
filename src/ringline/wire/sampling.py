"""The messages of sampling where the logits are, extension level 5.

Same conventions as messages.py. Widths are fixed here and stated in docs/protocol.md.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import ClassVar, Final, Self

import numpy as np
from numpy.typing import NDArray

from ringline.errors import ProtocolError
from ringline.wire.commands import Command
from ringline.wire.messages import Request, Result

__all__ = [
    "MOST_REASON",
    "TOP",
    "KeepRows",
    "ReadKept",
    "Sample",
    "Sampled",
    "SamplerFree",
    "SamplerNew",
    "Status",
    "VocabularyPart",
    "pack_sampled",
    "unpack_sampled",
]

#: one of the likeliest tokens in a reply.
TOP: Final = np.dtype([("token", "<i4"), ("logprob", "<f4")])
_LOGPROB: Final = struct.Struct("<f")
_LENGTH: Final = struct.Struct("<I")
#: why a sampler is broken is cut at so many bytes.
MOST_REASON: Final = 4096


def _no_top() -> NDArray[np.void]:
    return np.zeros(0, TOP)


class Status(IntEnum):
    """What stands in the place of a token that could not be chosen."""

    NO_TOKEN = -2
    NOT_NUMBERS = -3
    BROKEN = -4
    UNKNOWN = -5


@dataclass(frozen=True, slots=True)
class KeepRows(Request):
    """Copy a part of a tensor of f32 as further rows of `width` logits, for SAMPLE."""

    COMMAND: ClassVar = Command.KEEP_ROWS
    LAYOUT: ClassVar = struct.Struct("<296sQQI")
    tensor: bytes
    offset: int
    size: int
    width: int


@dataclass(frozen=True, slots=True)
class SamplerNew(Request):
    """Make a sampler, or make it anew.

    Attributes:
        sampler: its number, chosen by the client.
        text: its parameters, a JSON object.
        tokens: what it has seen already.
    """

    COMMAND: ClassVar = Command.SAMPLER_NEW
    LAYOUT: ClassVar = struct.Struct("<III")
    sampler: int
    text: bytes
    tokens: Sequence[int] = ()

    def pack(self) -> bytes:
        """Fixed part, then the text, then the tokens as i32."""
        head = self.LAYOUT.pack(self.sampler, len(self.text), len(self.tokens))
        return head + self.text + _i32(self.tokens)

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> Self:
        """Read a request.

        Raises:
            ProtocolError: its size is not the announced one.
        """
        sampler, length, n_tokens = _head(cls, raw)
        start = cls.LAYOUT.size + length
        _check_size(cls, raw, start + 4 * n_tokens)
        return cls(sampler, bytes(raw[cls.LAYOUT.size : start]), _numbers(raw, start, n_tokens))


@dataclass(frozen=True, slots=True)
class SamplerFree(Request):
    """Give a sampler back."""

    COMMAND: ClassVar = Command.SAMPLER_FREE
    LAYOUT: ClassVar = struct.Struct("<I")
    sampler: int


@dataclass(frozen=True, slots=True)
class Sample(Request):
    """Choose a token for each of some kept rows; the reply is data, see `unpack_sampled`.

    Attributes:
        number: the one before, sent again: the same reply, and no state changes.
        rows: which kept rows; samplers: which sampler for each.
        tops: for each -1, or how many of the likeliest tokens are wanted with their logprobs.
    """

    COMMAND: ClassVar = Command.SAMPLE
    LAYOUT: ClassVar = struct.Struct("<II")
    number: int
    rows: Sequence[int] = ()
    samplers: Sequence[int] = ()
    tops: Sequence[int] = ()

    def pack(self) -> bytes:
        """Fixed part, then the three lists as i32."""
        lists = b"".join(map(_i32, (self.rows, self.samplers, self.tops)))
        return self.LAYOUT.pack(self.number, len(self.rows)) + lists

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> Self:
        """Read a request.

        Raises:
            ProtocolError: its size is not the announced one.
        """
        number, count = _head(cls, raw)
        start = cls.LAYOUT.size
        _check_size(cls, raw, start + 12 * count)
        starts = range(start, len(raw), 4 * count) if count else (start,) * 3
        return cls(number, *(_numbers(raw, place, count) for place in starts))


@dataclass(frozen=True, slots=True)
class ReadKept(Request):
    """Read kept rows; the reply is their f32, one row after another."""

    COMMAND: ClassVar = Command.READ_KEPT
    LAYOUT: ClassVar = struct.Struct("<I")
    rows: Sequence[int]

    def pack(self) -> bytes:
        """Their number, then the rows as i32."""
        return self.LAYOUT.pack(len(self.rows)) + _i32(self.rows)

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> Self:
        """Read a request.

        Raises:
            ProtocolError: its size is not the announced one.
        """
        (count,) = _head(cls, raw)
        _check_size(cls, raw, cls.LAYOUT.size + 4 * count)
        return cls(_numbers(raw, cls.LAYOUT.size, count))


@dataclass(frozen=True, slots=True)
class VocabularyPart(Request):
    """A part of the header of the model's file: all its metadata, and no tensors.

    Attributes:
        part: 0: more follows on this connection; 1: the last one.
        data: the next bytes.
    """

    COMMAND: ClassVar = Command.VOCABULARY
    LAYOUT: ClassVar = struct.Struct("<B")
    Reply: ClassVar = Result
    part: int
    data: bytes | memoryview

    def pack(self) -> bytes:
        """Fixed part, then the data."""
        return self.LAYOUT.pack(self.part) + self.data

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> Self:
        """Read a request; the data are not copied.

        Raises:
            ProtocolError: it is neither the last part nor one before.
        """
        (part,) = _head(cls, raw)
        if part > 1:
            raise ProtocolError(f"{part} is neither 0 nor 1", command=cls.COMMAND.name)
        return cls(part, raw[cls.LAYOUT.size :])


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """What became of one row.

    Attributes:
        token: the token, or a Status.
        logprob: natural logarithm of its probability, as f32; None where it was not wanted.
        top: the likeliest tokens, the likeliest first, [n] TOP.
        reason: why the sampler is broken.
    """

    token: int
    logprob: float | None = None
    top: NDArray[np.void] = field(default_factory=_no_top)
    reason: str = ""


def pack_sampled(found: Sequence[Sampled]) -> bytes:
    """The reply to SAMPLE: all tokens, then the logprobs, then the reasons."""
    parts = [_i32([one.token for one in found])]
    for one in found:
        if one.logprob is not None:
            parts += [_LOGPROB.pack(one.logprob), one.top.tobytes()]
    for one in found:
        if one.token == Status.BROKEN:
            reason = one.reason.encode("utf-8", "replace")[:MOST_REASON]
            parts += [_LENGTH.pack(len(reason)), reason]
    return b"".join(parts)


def unpack_sampled(raw: bytes | memoryview, tops: Sequence[int], n_vocab: int) -> Sequence[Sampled]:
    """Read the reply to SAMPLE.

    Args:
        raw: the reply.
        tops: those of the request.
        n_vocab: width of the rows: no more tokens than that are named.

    Raises:
        ProtocolError: it is cut short, or longer than it says.
    """
    place = 4 * len(tops)
    if len(raw) < place:
        raise ProtocolError(f"SAMPLE: a reply of {len(raw)} bytes to {len(tops)} rows is too short")
    tokens = _numbers(raw, 0, len(tops))
    pairs = zip(tokens, tops, strict=True)
    counts = [min(top, n_vocab) if token >= 0 else -1 for token, top in pairs]
    size = sum(_LOGPROB.size + TOP.itemsize * count for count in counts if count >= 0)
    if len(raw) - place < size:
        raise ProtocolError(f"SAMPLE: a reply of {len(raw)} bytes breaks off in its logprobs")
    reasons = _reasons(raw, place + size, tokens.count(Status.BROKEN))
    found = []
    for token, count in zip(tokens, counts, strict=True):
        logprob, top = None, _no_top()
        if count >= 0:
            (logprob,) = _LOGPROB.unpack_from(raw, place)
            top = np.frombuffer(raw, TOP, count, place + _LOGPROB.size)
            place += _LOGPROB.size + TOP.itemsize * count
        found.append(Sampled(token, logprob, top, next(reasons) if token == Status.BROKEN else ""))
    return found


def _reasons(raw: bytes | memoryview, place: int, count: int) -> Iterator[str]:
    found = []
    for _ in range(count):
        left = len(raw) - place - _LENGTH.size
        length = _LENGTH.unpack_from(raw, place)[0] if left >= 0 else 0
        if not 0 <= length <= left:
            raise ProtocolError(f"SAMPLE: a reply of {len(raw)} bytes breaks off in its reasons")
        place += _LENGTH.size + length
        found.append(bytes(raw[place - length : place]).decode("utf-8", "replace"))
    if place != len(raw):
        raise ProtocolError(f"SAMPLE: {len(raw) - place} bytes are left after the reply")
    return iter(found)


def _i32(numbers: Sequence[int]) -> bytes:
    return np.asarray(numbers, "<i4").tobytes()


def _numbers(raw: bytes | memoryview, start: int, count: int) -> list[int]:
    found: list[int] = np.frombuffer(raw, "<i4", count, start).tolist() if count else []
    return found


def _head(kind: type[Request], raw: bytes | memoryview) -> tuple[int, ...]:
    if len(raw) < kind.LAYOUT.size:
        raise ProtocolError(f"{len(raw)} bytes are too few", command=kind.COMMAND.name)
    return kind.LAYOUT.unpack_from(raw)


def _check_size(kind: type[Request], raw: bytes | memoryview, size: int) -> None:
    if len(raw) != size:
        cause = f"{size} bytes are announced, {len(raw)} came"
        raise ProtocolError(cause, command=kind.COMMAND.name)
