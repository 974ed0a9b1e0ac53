"""A body that makes no sense raises ProtocolError, whatever it is, and takes no room for it."""

from __future__ import annotations

import random
import tracemalloc
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.errors import ProtocolError
from ringline.wire.commands import Command
from ringline.wire.thin import Decoder, Encoder
from ringline.wire.thin.channels import Counting, Moving
from ringline.wire.thin.codes import put_varint
from ringline.wire.thin.layouts import MOST_DECODED
from ringline.wire.thin.steps import DEFLATED, DIGEST, NEW, RESET, STEPS_PER_DIGEST
from tests.thin_steps import Ring

MIB = 1 << 20


def varint(value):
    out = bytearray()
    put_varint(out, value)
    return bytes(out)


def told(commands):
    """Bodies of some steps of a small ring: what a decoder may be given."""
    ring, encoder = Ring(2), Encoder()
    return [encoder.encode(ring.next()[0]) for _ in range(commands)]


BODIES = told(8)


def decode_all(bodies):
    """Decode until one fails with what the protocol names for it."""
    decoder = Decoder()
    for body in bodies:
        try:
            decoder.decode(memoryview(body))
        except ProtocolError as error:
            return error if error.command == "STEP" else pytest.fail(f"{error!r} names no command")
    return None


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, len(BODIES)))
def test_any_bytes_after_good_steps_are_decoded_or_refused(body, good):
    decode_all([*BODIES[:good], body])


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=120), st.sampled_from([0, NEW, DEFLATED, NEW | DEFLATED]))
def test_any_bytes_behind_sensible_flags_are_decoded_or_refused(rest, flags):
    if flags & DEFLATED:
        packer = zlib.compressobj(wbits=-15)
        rest = varint(len(rest)) + packer.compress(rest) + packer.flush()
    decode_all([*BODIES[:3], bytes([flags]) + rest])


@settings(max_examples=100, deadline=None)
@given(st.integers(0, len(BODIES) - 1), st.integers(0, 30_000), st.integers(1, 255))
def test_a_changed_byte_is_decoded_or_refused(number, at, change):
    body = bytearray(BODIES[number])
    body[at % len(body)] ^= change
    decode_all([*BODIES[:number], body, *BODIES[number + 1 :]])


@pytest.mark.parametrize("number", range(1, len(BODIES)))
def test_a_body_cut_short_is_refused(number):
    for size in {0, 1, 2, 3, 5, len(BODIES[number]) // 2, len(BODIES[number]) - 1}:
        assert decode_all([*BODIES[:number], BODIES[number][:size]]) is not None


def test_a_body_with_something_behind_it_is_refused():
    assert "follow its end" in str(decode_all([*BODIES[:4], BODIES[4] + b"\0"]))


def test_a_step_before_any_beginning_is_refused():
    assert "new beginning" in str(decode_all([bytes([NEW, 0])]))


def test_after_a_failure_only_a_new_beginning_is_decoded():
    decoder = Decoder()
    decoder.decode(memoryview(BODIES[0]))
    with pytest.raises(ProtocolError, match="skeleton 99"):
        decoder.decode(memoryview(bytes([0, 99])))
    with pytest.raises(ProtocolError, match="new beginning"):
        decoder.decode(memoryview(BODIES[1]))
    decoder.decode(memoryview(BODIES[0]))


GRAPH = bytes([RESET | NEW, 1, Command.GRAPH_COMPUTE])
SET = bytes([Command.SET_TENSOR])
BIG = varint(15 * MIB)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xf0",
        bytes([RESET | DIGEST, 1, 2]),
        bytes([RESET | NEW]) + varint(1 << 60),
        bytes([RESET | NEW, 1, Command.HELLO, 24]),
        bytes([RESET | NEW, 1]) + SET + varint(1 << 50),
        bytes([RESET | NEW, 5]) + (SET + BIG + b"\0" + bytes(305)) * 5 + b"\0",
        bytes([RESET | NEW, 1]) + SET + BIG + b"\1\0",
        bytes([RESET | NEW, 1]) + SET + BIG + b"\2",
        GRAPH + b"\0\0" + varint(1 << 40) + b"\0",
        GRAPH + b"\0\0" + varint(15 * MIB) + b"\0",
        GRAPH + b"\0\1",
        GRAPH + b"\1",
        GRAPH + b"\2\0",
        bytes([RESET | DEFLATED]) + varint(1 << 40),
        bytes([RESET | DEFLATED]) + varint(10) + zlib.compress(bytes(64 * MIB))[2:],
        bytes([RESET, *[255] * 10, 1]),
    ],
)
def test_what_is_announced_gets_no_room_before_it_is_checked(body):
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError):
            Decoder().decode(memoryview(body))
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


def test_a_value_that_is_deflated_to_more_than_its_size_is_refused():
    bomb = zlib.compress(bytes(64 * MIB))[2:]
    constants = b"\0" + bytes(296 + 9)
    body = bytes([RESET | NEW, 1]) + SET + varint(305 + 8) + constants
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolError, match="not the announced 8"):
            Decoder().decode(memoryview(body + b"\0\5" + varint(len(bomb)) + bomb))
        assert tracemalloc.get_traced_memory()[1] < 2 * MIB
    finally:
        tracemalloc.stop()


def test_what_a_decoder_keeps_is_bounded():
    """Ever new places of 15 MiB each: the old ones are forgotten."""
    decoder, most = Decoder(), 0
    tracemalloc.start()
    try:
        for number in range(12):
            head = b"\0" + bytes(228) + b"%064d" % number + bytes(4 + 9)
            body = bytes([(RESET if number == 0 else 0) | NEW, 1]) + SET + BIG + head + b"\1"
            decoder.decode(memoryview(body))
            most = max(most, tracemalloc.get_traced_memory()[1])
        assert tracemalloc.get_traced_memory()[0] < 64 * MIB + 4 * MIB
    finally:
        tracemalloc.stop()
    assert most < 2 * MOST_DECODED


def channels_of(decoder, kind):
    return [c for c in decoder._state.channels._channels.values() if isinstance(c, kind)]


def damage_moving(decoder):
    mask = max(channels_of(decoder, Moving), key=lambda channel: channel.size)
    mask._value[random.Random(3).randrange(mask.size)] ^= 1


def damage_counting(decoder):
    for channel in channels_of(decoder, Counting):
        channel.update(bytes(channel.size))


@pytest.mark.parametrize("damage", [damage_moving, damage_counting])
def test_a_decoder_that_has_gone_wrong_says_so_at_the_next_digest(damage):
    ring, encoder, decoder = Ring(2), Encoder(), Decoder()
    for _ in range(5):
        decoder.decode(memoryview(encoder.encode(ring.next()[1])))
    damage(decoder)
    bodies = [encoder.encode(ring.next()[1]) for _ in range(STEPS_PER_DIGEST)]
    with pytest.raises(ProtocolError, match="do not agree"):
        [decoder.decode(memoryview(body)) for body in bodies]
