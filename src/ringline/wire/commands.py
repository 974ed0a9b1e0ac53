"""The one table of commands: number, extension level, reply, and the limits of a body.

The next version of the protocol is one new table. A command of level n is sent only where both ends
reported level >= n; level 0 is the base protocol, ggml RPC 7.0.0 (llama-cpp-python 0.3.36).
Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

__all__ = [
    "BASE_VERSION",
    "EXTENSION_LEVEL",
    "MOST_ROW_IDS",
    "MOST_ROW_PART",
    "RULES",
    "TENSOR_SIZE",
    "Command",
    "Reply",
    "Rule",
]

#: what the base protocol calls itself in HELLO: major, minor, patch.
BASE_VERSION: Final = (7, 0, 0)
#: the highest extension level that this code speaks.
EXTENSION_LEVEL: Final = 5
#: size of one tensor record on the wire.
TENSOR_SIZE: Final = 296

_GIB: Final = 1 << 30
_MIB: Final = 1 << 20
#: bytes of a table in one ROW_TABLE.
MOST_ROW_PART: Final = 8 * _MIB
#: rows that one SET_ROWS or CHECK_ROWS names.
MOST_ROW_IDS: Final = 1 << 16
#: one SET may carry a whole weight; the destination's own bounds are the real limit.
_MOST_DATA: Final = 1 << 40


class Command(IntEnum):
    """The command byte of a request."""

    ALLOC_BUFFER = 0
    GET_ALIGNMENT = 1
    GET_MAX_SIZE = 2
    BUFFER_GET_BASE = 3
    FREE_BUFFER = 4
    BUFFER_CLEAR = 5
    SET_TENSOR = 6
    SET_TENSOR_HASH = 7
    GET_TENSOR = 8
    COPY_TENSOR = 9
    GRAPH_COMPUTE = 10
    GET_DEVICE_MEMORY = 11
    INIT_TENSOR = 12
    GET_ALLOC_SIZE = 13
    HELLO = 14
    DEVICE_COUNT = 15
    GRAPH_RECOMPUTE = 16
    MEMSET_TENSOR = 17
    EXT_HELLO = 0x80
    PING = 0x81
    GET_TENSORS = 0x82
    SET_TENSORS = 0x83
    COPY_TENSOR_TO = 0x84
    PEER_BARRIER = 0x85
    SEND_TENSOR = 0x86
    RECV_TENSOR = 0x87
    PEER_DATA = 0x88
    PROBE_PEER = 0x89
    SUPPORTS_OP = 0x8A
    READ_COUNTERS = 0x8B
    STEP = 0x90
    KEEP_ROWS = 0x91
    SAMPLER_NEW = 0x92
    SAMPLER_FREE = 0x93
    SAMPLE = 0x94
    READ_KEPT = 0x95
    VOCABULARY = 0x96
    ROW_TABLE = 0x97
    SET_ROWS = 0x98
    CHECK_ROWS = 0x99


class Reply(IntEnum):
    """What follows a request: nothing, a body of known size, or as many bytes as were asked for."""

    NONE = 0
    FIXED = 1
    DATA = 2


@dataclass(frozen=True, slots=True)
class Rule:
    """What the protocol allows for one command.

    Attributes:
        level: the extension level that brought it; 0 is the base protocol.
        reply: what answers it.
        least: the smallest body, bytes.
        most: the largest body, bytes; checked before room is made.
    """

    level: int
    reply: Reply
    least: int
    most: int


def _exact(size: int, reply: Reply, level: int = 0) -> Rule:
    return Rule(level, reply, size, size)


_T = TENSOR_SIZE
#: an endpoint's text is at most this long.
_NAME: Final = 512
#: rows of one SAMPLE or READ_KEPT.
_ROWS: Final = 4096

RULES: Final[dict[Command, Rule]] = {
    Command.ALLOC_BUFFER: _exact(12, Reply.FIXED),
    Command.GET_ALIGNMENT: _exact(4, Reply.FIXED),
    Command.GET_MAX_SIZE: _exact(4, Reply.FIXED),
    Command.BUFFER_GET_BASE: _exact(8, Reply.FIXED),
    Command.FREE_BUFFER: _exact(8, Reply.NONE),
    Command.BUFFER_CLEAR: _exact(9, Reply.NONE),
    Command.SET_TENSOR: Rule(0, Reply.NONE, _T + 9, _MOST_DATA),
    Command.SET_TENSOR_HASH: _exact(_T + 16, Reply.FIXED),
    Command.GET_TENSOR: _exact(_T + 16, Reply.DATA),
    Command.COPY_TENSOR: _exact(2 * _T, Reply.FIXED),
    # a model's graph has thousands of tensors of 296 bytes; this is room for 200,000.
    Command.GRAPH_COMPUTE: Rule(0, Reply.NONE, 12, 64 * _MIB),
    Command.GET_DEVICE_MEMORY: _exact(4, Reply.FIXED),
    Command.INIT_TENSOR: _exact(_T, Reply.NONE),
    Command.GET_ALLOC_SIZE: _exact(4 + 11 * _T, Reply.FIXED),
    Command.HELLO: _exact(24, Reply.FIXED),
    Command.DEVICE_COUNT: _exact(0, Reply.FIXED),
    Command.GRAPH_RECOMPUTE: _exact(4, Reply.NONE),
    Command.MEMSET_TENSOR: _exact(_T + 17, Reply.NONE),
    Command.EXT_HELLO: _exact(32, Reply.DATA, 1),
    Command.PING: _exact(0, Reply.FIXED, 1),
    Command.GET_TENSORS: Rule(2, Reply.DATA, 4, 4 + 4096 * (_T + 16)),
    Command.SET_TENSORS: Rule(2, Reply.NONE, 4, _GIB),
    Command.COPY_TENSOR_TO: Rule(3, Reply.FIXED, 2 * _T + 12, 2 * _T + 12 + _NAME),
    Command.PEER_BARRIER: _exact(0, Reply.FIXED, 3),
    Command.SEND_TENSOR: Rule(4, Reply.NONE, _T + 44, _T + 44 + _NAME),
    Command.RECV_TENSOR: _exact(_T + 36, Reply.NONE, 4),
    Command.PEER_DATA: Rule(4, Reply.NONE, 24, _MOST_DATA),
    Command.PROBE_PEER: Rule(4, Reply.FIXED, 20, 20 + _NAME),
    Command.SUPPORTS_OP: _exact(4 + 11 * _T, Reply.FIXED, 1),
    Command.READ_COUNTERS: _exact(0, Reply.DATA, 1),
    Command.ROW_TABLE: Rule(5, Reply.NONE, 24, 24 + MOST_ROW_PART),
    Command.SET_ROWS: Rule(5, Reply.NONE, _T + 8, _T + 8 + 4 * MOST_ROW_IDS),
    Command.CHECK_ROWS: Rule(5, Reply.FIXED, 8, 8 + 4 * MOST_ROW_IDS),
    Command.STEP: Rule(5, Reply.NONE, 1, 64 * _MIB),
    Command.KEEP_ROWS: _exact(_T + 20, Reply.NONE, 5),
    Command.SAMPLER_NEW: Rule(5, Reply.NONE, 12, 12 + 16 * _MIB),
    Command.SAMPLER_FREE: _exact(4, Reply.NONE, 5),
    Command.SAMPLE: Rule(5, Reply.DATA, 8, 8 + 12 * _ROWS),
    Command.READ_KEPT: Rule(5, Reply.DATA, 4, 4 + 4 * _ROWS),
    Command.VOCABULARY: Rule(5, Reply.FIXED, 1, 1 + 64 * _MIB),
}
