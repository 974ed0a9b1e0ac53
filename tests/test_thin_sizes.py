"""How small a step gets: what the codec is for."""

from __future__ import annotations

import struct

import pytest

from ringline.wire.commands import Command
from ringline.wire.thin import Decoder, Encoder
from tests.thin_steps import I32, Ring, record

FIRST, MIDDLE, LAST = range(3)


def bodies(ring, steps):
    """Sizes of the bodies of so many steps, per node; each is decoded and compared."""
    ends = [(Encoder(), Decoder()) for _ in range(3)]
    sizes = [[], [], []]
    for _ in range(steps):
        for node, (step, (encoder, decoder)) in enumerate(zip(ring.next(), ends, strict=True)):
            body = encoder.encode(step)
            assert decoder.decode(memoryview(body)) == step
            sizes[node].append(len(body))
    return sizes


@pytest.mark.parametrize("rows", [1, 8, 32])
def test_a_steady_step_is_some_bytes(rows):
    ring = Ring(rows, tick=1024 // rows)  # no window grows for some steps
    sizes = [node[4:] for node in bodies(ring, 7)]
    assert max(sizes[MIDDLE]) <= 4
    assert max(sizes[FIRST]) <= 8 + 3 * rows
    assert max(sizes[LAST]) <= 6


def test_a_step_with_a_digest_is_four_bytes_more():
    sizes = bodies(Ring(1), 70)[MIDDLE]
    steady = sizes[-1]
    assert [size - steady for size in sizes[60:68]] == [0, 0, 0, 0, 4, 0, 0, 0]


def test_a_step_whose_window_grows_is_some_hundred_bytes():
    ring = Ring(32, tick=10)
    sizes = bodies(ring, 8)
    assert ring.n_kv == 768
    for node in sizes:
        assert max(node[4:]) > 300  # the growing step is among them
        assert max(node[4:]) <= 1200


def test_a_first_step_is_a_tenth_of_its_commands():
    ring, encoder = Ring(8), Encoder()
    step = ring.next()[FIRST]
    assert len(encoder.encode(step)) < sum(len(body) for _, body in step) / 8


def test_rows_that_come_back_cost_what_has_changed():
    ring, encoder, decoder = Ring(8), Encoder(), Decoder()
    sizes = []
    for number in range(30):
        ring.rows = 5 if 10 <= number < 20 else 8
        step = ring.next()[MIDDLE]
        body = encoder.encode(step)
        assert decoder.decode(memoryview(body)) == step
        sizes.append(len(body))
    assert sizes[20] <= 120  # the mask has other rows, the rest counts on
    assert sizes[25] <= 4


def test_positions_that_all_jump_alike_are_told_by_one_number():
    encoder, decoder = Encoder(), Decoder()
    head = record("RPC0#inp_pos#0", I32, 4, (32, 1, 1, 1)) + bytes(9)
    for start in (0, 1, 2, 700):
        step = [(Command.SET_TENSOR, head + struct.pack("<32i", *range(start, start + 32)))]
        body = encoder.encode(step)
        assert decoder.decode(memoryview(body)) == step
    assert len(body) == 6  # flags, skeleton, mask, mode, two bytes


def test_copies_of_a_tensor_share_their_values():
    ring, encoder, decoder = Ring(8), Encoder(), Decoder()
    sizes = []
    for number in range(20):
        ring.copy = number % 4
        step = ring.next()[MIDDLE]
        body = encoder.encode(step)
        assert decoder.decode(memoryview(body)) == step
        sizes.append(len(body))
    assert max(sizes[12:]) <= 4
