"""The bodies of level 5: what is packed is read again, and what cannot be is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from ringline.errors import ProtocolError
from ringline.wire.sampling import (
    TOP,
    KeepRows,
    ReadKept,
    Sample,
    Sampled,
    SamplerFree,
    SamplerNew,
    Status,
    VocabularyPart,
    pack_sampled,
    unpack_sampled,
)


@pytest.mark.parametrize(
    ("message", "body"),
    [
        (KeepRows(b"t" * 296, 1, 2, 3), b"t" * 296 + struct.pack("<QQI", 1, 2, 3)),
        (SamplerNew(7, b"{}", [1, -2]), struct.pack("<III2sii", 7, 2, 2, b"{}", 1, -2)),
        (SamplerNew(7, b"", []), struct.pack("<III", 7, 0, 0)),
        (SamplerFree(9), struct.pack("<I", 9)),
        (Sample(5, [1, 2], [3, 4], [-1, 6]), struct.pack("<II6i", 5, 2, 1, 2, 3, 4, -1, 6)),
        (Sample(5, [], [], []), struct.pack("<II", 5, 0)),
        (ReadKept([2, 0]), struct.pack("<I2i", 2, 2, 0)),
        (VocabularyPart(1, b"xy"), b"\1xy"),
        (VocabularyPart(0, b""), b"\0"),
    ],
)
def test_bodies_are_those_of_the_document(message, body):
    assert message.pack() == body
    assert type(message).unpack(memoryview(body)) == message


FOUND = [
    Sampled(5, -0.5, np.array([(5, -0.5), (6, -1.5)], TOP)),
    Sampled(Status.NO_TOKEN),
    Sampled(8),
    Sampled(Status.BROKEN, reason="no ü"),
    Sampled(9, -2.0),
]
TOPS = [7, 3, -1, 2, 0]
REPLY = (
    struct.pack("<5i", 5, -2, 8, -4, 9)
    + struct.pack("<fififf", -0.5, 5, -0.5, 6, -1.5, -2.0)
    + struct.pack("<I5s", 5, "no ü".encode())
)


def test_a_reply_is_that_of_the_document():
    assert pack_sampled(FOUND) == REPLY
    found = unpack_sampled(REPLY, TOPS, 2)
    for one, wanted in zip(found, FOUND, strict=True):
        assert (one.token, one.logprob, one.reason) == (wanted.token, wanted.logprob, wanted.reason)
        assert one.top.tolist() == wanted.top.tolist()


@pytest.mark.parametrize("size", range(len(REPLY)))
def test_a_reply_that_is_cut_short_anywhere_is_refused(size):
    with pytest.raises(ProtocolError, match="SAMPLE: "):
        unpack_sampled(REPLY[:size], TOPS, 2)


def test_a_reply_that_goes_on_is_refused():
    with pytest.raises(ProtocolError, match="1 bytes are left"):
        unpack_sampled(REPLY + b"x", TOPS, 2)


def test_a_long_reason_is_cut():
    found = unpack_sampled(pack_sampled([Sampled(Status.BROKEN, reason="x" * 9999)]), [-1], 2)
    assert found[0].reason == "x" * 4096
