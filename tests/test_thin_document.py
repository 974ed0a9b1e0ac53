"""Bodies written by hand, as docs/protocol.md describes them, are decoded to what they say."""

from __future__ import annotations

import struct
import zlib
from hashlib import blake2b

from ringline.wire.commands import Command
from ringline.wire.thin import Decoder
from tests.thin_steps import I32, record

RESET, DIGEST, NEW, DEFLATED = 1, 2, 4, 8
POSITIONS = record("RPC0#inp_pos#0", I32, 4, (2, 1, 1, 1))
HEAD = POSITIONS + bytes(9)
#: one SET_TENSOR of 313 = 0x139 bytes; its record follows as it is, then 9 constant bytes.
DEFINED = bytes([1, Command.SET_TENSOR, 0xB9, 0x02, 0]) + HEAD


def integers(*values):
    return struct.pack(f"<{len(values)}i", *values)


def decoded(*bodies):
    """The data of the last command of each step."""
    decoder = Decoder()
    return [decoder.decode(memoryview(body))[-1][1][len(HEAD) :] for body in bodies]


def test_data_are_predicted_counted_and_told():
    assert decoded(
        bytes([RESET | NEW]) + DEFINED + bytes([0, 4]) + integers(5, 100),  # raw
        bytes([0, 0, 1]),  # NEXT, plus 1
        bytes([0, 0, 0, 3 + 16, 4]),  # even, 2 more than NEXT
        bytes([0, 0, 1]),  # NEXT, plus the last difference
        bytes([0, 0, 0, 2 + 0, 1, 0]),  # varints: SAME less 1, SAME
        bytes([0, 0, 1]),  # as predicted by SAME now
        bytes([0, 0, 0, 1 + 0, 1, 4, 1, 9]),  # one run at byte 4 of SAME
        bytes([0, 0, 0, 2 + 32, 0x80, 0x01, 7]),  # plain numbers
        bytes([0, 0, 0, 0 + 32]),  # zero
    ) == [
        integers(5, 100),
        integers(6, 101),
        integers(9, 104),
        integers(12, 107),
        integers(11, 107),
        integers(11, 107),
        integers(11, 9),
        integers(128, 7),
        integers(0, 0),
    ]


def test_another_copy_of_a_tensor_is_told_by_runs_and_continues_its_values():
    other = bytes([1, Command.SET_TENSOR, 0xB9, 0x02, 1, 0])  # like descriptor 0
    runs = bytes([1]) + b"\xf1\x01" + b"\x01" + b"7"  # byte 241: the number of the copy
    first, second = decoded(
        bytes([RESET | NEW]) + DEFINED + bytes([0, 4]) + integers(1, 2),
        bytes([NEW]) + other + runs + bytes(9) + b"\1",
    )
    assert (first, second) == (integers(1, 2), integers(2, 3))


def test_a_rest_may_be_deflated_and_a_digest_counts_whole_commands():
    rest = DEFINED + bytes([1])
    packer = zlib.compressobj(wbits=-15)
    packed = packer.compress(rest) + packer.flush()
    body = HEAD + integers(1, 1)
    crc = zlib.crc32(struct.pack("<BQI", Command.SET_TENSOR, len(body), zlib.crc32(body)))
    size = bytes([len(rest) % 128 + 128, len(rest) // 128])
    flags = bytes([RESET | DIGEST | NEW | DEFLATED])
    assert decoded(flags + struct.pack("<I", crc) + size + packed) == [integers(1, 1)]


def test_tickets_follow_each_other():
    ticket = bytes(range(16))
    following = blake2b(ticket, digest_size=16, person=b"ringline-ticket").digest()
    head = bytes([1, Command.RECV_TENSOR, 0xCC, 0x02, 0]) + POSITIONS + bytes(16 + 4)
    decoder = Decoder()
    begun = decoder.decode(memoryview(bytes([RESET | NEW]) + head + b"\0\0" + ticket))
    predicted = decoder.decode(memoryview(bytes([0, 0, 1])))
    assert begun[0][1][312:328] == ticket
    assert predicted[0][1][312:328] == following
