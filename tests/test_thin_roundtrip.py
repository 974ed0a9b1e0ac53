"""Whatever a step holds, the decoder gives back the very same commands, step after step."""

from __future__ import annotations

import random
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.errors import CallerError
from ringline.wire.commands import RULES, Command
from ringline.wire.thin import Decoder, Encoder, next_ticket
from ringline.wire.thin.layouts import LAYOUTS, MOST_BODY, MOST_COMMANDS
from ringline.wire.thin.skeletons import MOST_KEPT_COMMANDS, MOST_SKELETONS
from tests.thin_steps import F16, F32, I32, I64, Ring, record

#: few, so that steps share them and change between them.
NAMES = ("RPC0#leaf_4#0", "RPC0#leaf_4#1", "mask", "", "#")
SIZES = (1, 4, 6, 8, 24, 64, 300)
luck = random.Random(1)
RECORDS = [
    record(name, kind, 4, (3, 1, 1, 1)) for name in NAMES for kind in (F32, F16, I32, I64, 9)
]
TICKETS = [bytes([first] * 16) for first in range(3)]
TICKETS += [next_ticket(ticket) for ticket in TICKETS]
GRAPHS = [
    bytes([number % 3] * 4) + luck.randbytes(size) for number in range(3) for size in (8, 900)
]
GRAPHS += [body[:-1] + b"\1" for body in GRAPHS]


def data(size: int) -> st.SearchStrategy[bytes]:
    """Values that repeat, count, move or are anything."""
    counted = st.integers(-3, 300).map(lambda n: (struct.pack("<q", n) * (size // 8 + 1))[:size])
    dotted = st.integers(0, size - 1).map(lambda at: bytes(at) + b"\x3c" + bytes(size - at - 1))
    return st.one_of(st.just(bytes(size)), counted, dotted, st.binary(min_size=size, max_size=size))


def constants(size: int) -> st.SearchStrategy[bytes]:
    return st.sampled_from([bytes(size), b"\1" * size])


def joined(*parts: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.tuples(*parts).map(b"".join)


BODIES = {
    Command.SET_TENSOR: st.sampled_from(SIZES).flatmap(
        lambda size: joined(st.sampled_from(RECORDS), constants(9), data(size))
    ),
    Command.SET_ROWS: st.sampled_from([0, 4, 32]).flatmap(
        lambda size: joined(
            st.sampled_from(RECORDS), constants(8), data(size) if size else st.just(b"")
        )
    ),
    Command.SAMPLE: st.sampled_from([0, 12, 96]).flatmap(
        lambda size: joined(data(4), constants(4), data(size) if size else st.just(b""))
    ),
    Command.GRAPH_COMPUTE: st.sampled_from(GRAPHS),
    Command.SEND_TENSOR: joined(
        st.sampled_from(RECORDS),
        constants(16),
        st.sampled_from(TICKETS),
        constants(12),
        st.sampled_from([b"", b"localhost:50052"]),
    ),
    Command.RECV_TENSOR: joined(
        st.sampled_from(RECORDS), constants(16), st.sampled_from(TICKETS), constants(4)
    ),
    Command.COPY_TENSOR: joined(st.sampled_from(RECORDS), st.sampled_from(RECORDS)),
}
for other in LAYOUTS.keys() - BODIES.keys():
    BODIES[other] = constants(RULES[other].least)

COMMANDS = st.sampled_from(sorted(BODIES)).flatmap(
    lambda command: st.tuples(st.just(command), BODIES[command])
)


def check(steps):
    """Send the steps; the sizes of their bodies."""
    encoder, decoder = Encoder(), Decoder()
    sizes = []
    for step in steps:
        body = encoder.encode(step)
        assert decoder.decode(memoryview(body)) == step
        sizes.append(len(body))
    return sizes


@settings(max_examples=150, deadline=None)
@given(st.lists(st.lists(COMMANDS, max_size=5), max_size=12))
def test_any_commands_come_back(steps):
    check(steps)


@settings(max_examples=60, deadline=None)
@given(st.lists(COMMANDS, min_size=1, max_size=6), st.data())
def test_steps_that_change_a_little_come_back(step, draw):
    steps = []
    for _ in range(12):
        at = draw.draw(st.integers(0, len(step) - 1))
        command = step[at][0]
        step = [*step[:at], (command, draw.draw(BODIES[command])), *step[at + 1 :]]
        steps.append(step)
    check(steps)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from([(F32, "<u4"), (F16, "<u2"), (I32, "<i4"), (I64, "<i8"), (9, "<u1")]),
    st.lists(st.lists(st.integers(0, 39), max_size=6), max_size=20),
    st.data(),
)
def test_elements_that_change_here_and_there_come_back(kind, changes, draw):
    number, element = kind
    values = np.zeros(40, element)
    steps = []
    for places in changes:
        for at in places:
            values[at] = draw.draw(st.integers(0, np.iinfo(element).max))
        body = record("x", number, 4, (40, 1, 1, 1)) + bytes(9) + values.tobytes()
        steps.append([(Command.SET_TENSOR, body)])
    check(steps)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_ring_comes_back_over_many_steps(rows):
    ring = Ring(rows)
    for node in zip(*(ring.next() for _ in range(140)), strict=True):
        check(node)


def test_more_skeletons_than_the_table_holds_come_back():
    one = [(Command.FREE_BUFFER, struct.pack("<Q", number)) for number in range(MOST_SKELETONS + 9)]
    sizes = check([[command] for command in one] + [[one[-1]], [one[0]]])
    assert sizes[-2] == 2  # flags and a number
    assert sizes[-1] > 2  # thrown out by others


def test_a_long_step_comes_back_and_is_not_kept():
    step = [(Command.PING, b"")] * (MOST_KEPT_COMMANDS + 1)
    first, second = check([step, step])
    assert second > 3
    assert first - second == 4  # the digest


def test_a_graph_that_is_repeated_is_the_same_object():
    encoder, decoder = Encoder(), Decoder()
    seen = []
    for body in (GRAPHS[1], GRAPHS[3], GRAPHS[1], bytearray(GRAPHS[1])):
        coded = encoder.encode([(Command.GRAPH_COMPUTE, bytes(body))])
        seen.append(decoder.decode(memoryview(coded))[0][1])
    assert seen[0] is seen[2] is seen[3]
    assert seen[1] == GRAPHS[3]


def test_two_contents_of_one_place_in_one_step_stay_apart():
    head = record("mask", F16, 2, (64, 1, 1, 1)) + bytes(9)
    a, b = bytes(128), bytes(126) + b"\x3c\0"
    check([[(Command.SET_TENSOR, head + value) for value in (a, b, a, b)] for _ in range(5)])


def test_a_reset_in_the_middle_is_followed():
    encoder, decoder, ring = Encoder(), Decoder(), Ring(2)
    for number in range(6):
        if number == 3:
            encoder.reset()
        step = ring.next()[1]
        assert decoder.decode(memoryview(encoder.encode(step))) == step


def test_what_is_not_accepted_changes_nothing():
    encoder, decoder = Encoder(), Decoder()
    refused = [
        (Command.HELLO, bytes(24)),
        (Command.PING, b"x"),
        (Command.SET_TENSOR, bytes(305)),
        (Command.SAMPLE, bytes(12)),
        (Command.GRAPH_COMPUTE, bytes(MOST_BODY + 1)),
        (255, b""),
    ]
    ring = Ring(2)
    for command, body in refused[:2] + refused[3:]:
        step = ring.next()[0]
        assert not encoder.accepts(command, len(body))
        with pytest.raises(CallerError, match="send it alone"):
            encoder.encode([*step, (command, body)])
        assert decoder.decode(memoryview(encoder.encode(step))) == step


@pytest.mark.parametrize(
    "step",
    [[(Command.PING, b"")] * (MOST_COMMANDS + 1), [(Command.GRAPH_COMPUTE, bytes(MOST_BODY))] * 4],
)
def test_a_step_that_is_too_large_is_refused(step):
    with pytest.raises(CallerError, match="too large"):
        Encoder().encode(step)


def test_the_largest_step_comes_back():
    head = record("weights", 9, 1, (1, 1, 1, 1)) + bytes(9)
    size = MOST_BODY - len(head)
    step = [(Command.SET_TENSOR, head + random.Random(n).randbytes(size)) for n in range(3)]
    (coded,) = check([step])
    assert coded <= RULES[Command.STEP].most
