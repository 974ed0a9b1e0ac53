"""How the value of one channel is coded when its predictor is wrong: a mode byte, then the rest.

The mode is form + 16 * base. The encoder takes the smallest form it finds without much searching.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.wire.thin.channels import Base, Channel
from ringline.wire.thin.codes import (
    Reader,
    apply_runs,
    deflate,
    find_runs,
    inflate,
    put_varint,
    put_varints,
    wrong,
)

__all__ = ["MOST_VARINTS", "Form", "decode_field", "encode_field"]

#: more elements than this are not told one by one.
MOST_VARINTS: Final = 4096

#: smaller values are not deflated.
_LEAST_DEFLATED: Final = 64
#: larger ones are deflated in haste.
_HASTE: Final = 256 << 10
#: what could not be deflated is not tried again for so many values.
_PATIENCE: Final = 64
#: plain numbers, where they were best, are taken again, unsearched, so many times.
_TRIALS: Final = 16

Coded = tuple[bytes | bytearray, "Form", Base]


class Form(IntEnum):
    """How a value is told."""

    EXACT = 0  # it is the base
    RUNS = 1  # runs of bytes that differ from the base
    VARINTS = 2  # per element the difference from the base; a zigzag varint, a plain one for ZERO
    EVEN = 3  # one zigzag varint: the difference from the base, the same for all elements
    RAW = 4  # the bytes; base 0
    DEFLATED = 5  # deflated size, deflated bytes; base 0


def encode_field(channel: Channel, value: bytes, out: bytearray) -> bool:
    """Code one value; True: the channel's predictor gives it, nothing was written."""
    if channel.hit(value):
        return True
    code, form, base = _exact(channel, value) or _again(channel, value) or _search(channel, value)
    out.append(form + 16 * base)
    out += code
    _settle(channel, form, base, value)
    return False


def decode_field(channel: Channel, reader: Reader) -> bytes:
    """Read what encode_field() wrote.

    Raises:
        ProtocolError: it makes no sense for this channel.
    """
    mode = reader.byte()
    try:
        form, base = Form(mode % 16), Base(mode // 16)
    except ValueError:
        raise wrong(f"a value is coded in an unknown way, {mode}") from None
    value = _read(channel, form, base, reader)
    _settle(channel, form, base, value)
    return value


def _settle(channel: Channel, form: Form, base: Base, value: bytes) -> None:
    if form <= Form.EVEN and base is not Base.ZERO:
        channel.base = base
    channel.update(value)


def _read(channel: Channel, form: Form, base: Base, reader: Reader) -> bytes:
    if form is Form.RAW:
        return reader.take(channel.size)
    if form is Form.DEFLATED:
        return inflate(reader.take(reader.varint()), channel.size)
    guess = channel.guess(base)
    if form is Form.EXACT:
        return guess
    if form is Form.RUNS:
        target = bytearray(guess)
        apply_runs(reader, target)
        return bytes(target)
    return _read_numbers(channel, form, base, guess, reader)


def _read_numbers(channel: Channel, form: Form, base: Base, guess: bytes, reader: Reader) -> bytes:
    if channel.element.kind != "i":
        raise wrong("a value that has no integers is coded as integers")
    before: npt.NDArray[np.int64] = np.frombuffer(guess, channel.element).astype(np.int64)
    count = 1 if form is Form.EVEN else len(before)
    if count > MOST_VARINTS:
        raise wrong(f"{count} integers are coded one by one, {MOST_VARINTS} are allowed")
    numbers = np.array([reader.varint() for _ in range(count)], np.uint64)
    if form is Form.EVEN or base is not Base.ZERO:
        numbers = (numbers >> np.uint64(1)) ^ (~(numbers & np.uint64(1)) + np.uint64(1))
    return (before + numbers.view(np.int64)).astype(channel.element).tobytes()


def _exact(channel: Channel, value: bytes) -> Coded | None:
    """The predictor that was not used last, if it is right."""
    base = Base.SAME if channel.base is Base.NEXT else Base.NEXT
    return (b"", Form.EXACT, base) if channel.guess(base) == value else None


def _again(channel: Channel, value: bytes) -> Coded | None:
    """Plain numbers, if they were best last time and do as well now: token ids are such."""
    if not channel.trials:
        return None
    code = _numbers(channel, value, Form.VARINTS, Base.ZERO)
    if code is None or len(code) > channel.trial_size + channel.trial_size // 4 + 2:
        channel.trials = 0
        return None
    channel.trials -= 1
    return code, Form.VARINTS, Base.ZERO


def _search(channel: Channel, value: bytes) -> Coded:
    found: list[Coded] = []
    for base in (Base.NEXT, Base.SAME):
        runs = find_runs(channel.guess(base), value, len(value) // 4 + 16)
        if runs is not None:
            found.append((runs, Form.RUNS, base))
    if channel.element.kind == "i":
        found += _all_numbers(channel, value)
    best = min(found, key=lambda coded: len(coded[0]), default=None)
    if best is None or len(best[0]) > len(value) // 8:
        best = _deflated(channel, value, best)
    if best is None or len(best[0]) >= len(value):
        return value, Form.RAW, Base.SAME
    if best[1:] == (Form.VARINTS, Base.ZERO):
        channel.trials, channel.trial_size = _TRIALS, len(best[0])
    return best


def _all_numbers(channel: Channel, value: bytes) -> list[Coded]:
    found: list[Coded] = []
    for base in (Base.NEXT, Base.SAME, Base.ZERO):
        for form in (Form.EVEN, Form.VARINTS):
            code = _numbers(channel, value, form, base)
            if code is not None:
                found.append((code, form, base))
    return found


def _numbers(channel: Channel, value: bytes, form: Form, base: Base) -> bytearray | None:
    """The differences from a base as varints; None where this form cannot tell them."""
    new: npt.NDArray[np.int64] = np.frombuffer(value, channel.element).astype(np.int64)
    if base is not Base.ZERO:
        new = new - np.frombuffer(channel.guess(base), channel.element)
    if form is Form.EVEN:
        if not (new == new[0]).all():
            return None
        new = new[:1]
    elif len(new) > MOST_VARINTS:
        return None
    if form is Form.EVEN or base is not Base.ZERO:
        new = (new << 1) ^ (new >> 63)
    return put_varints(new.view(np.uint64).tolist())


def _deflated(channel: Channel, value: bytes, best: Coded | None) -> Coded | None:
    if len(value) < _LEAST_DEFLATED:
        return best
    if channel.patience:
        channel.patience -= 1
        return best
    packed = deflate(value, 1 if len(value) > _HASTE else 6)
    out = bytearray()
    put_varint(out, len(packed))
    out += packed
    if len(out) > len(value) - len(value) // 8:
        channel.patience = _PATIENCE
    return (out, Form.DEFLATED, Base.SAME) if best is None or len(out) < len(best[0]) else best
