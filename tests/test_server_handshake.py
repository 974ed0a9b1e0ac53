"""The first bytes of a connection: a machine without a socket."""

from __future__ import annotations

import pytest

from ringline.errors import ProtocolError
from ringline.server.handshake import HELLO_REPLY, Handshake, Stage
from ringline.wire.commands import BASE_VERSION, EXTENSION_LEVEL, Command
from ringline.wire.extension import ExtHello, Role
from ringline.wire.frames import REQUEST_HEADER, request_frame
from ringline.wire.messages import Hello

HELLO = request_frame(Command.HELLO, Hello().pack())
EXT_HELLO = request_frame(Command.EXT_HELLO, ExtHello(3, Role.ATTACH, session=7).pack())


def feed(handshake: Handshake, data: bytes, step: int) -> bytes:
    """Feed as a gatekeeper does: never more than is wanted."""
    replies = b""
    while data:
        size = min(step, handshake.wanted())
        assert size > 0
        replies += handshake.feed(data[:size])
        data = data[size:]
    return replies


@pytest.mark.parametrize("step", [1, 7, 33])
def test_hello_is_answered_in_any_pieces(step):
    handshake = Handshake()
    assert feed(handshake, HELLO, step) == HELLO_REPLY
    assert handshake.stage is Stage.FIRST_COMMAND


def test_the_answer_is_the_base_version_with_the_level_in_the_padding():
    size = Hello.Reply.LAYOUT.size
    assert bytes([size, *[0] * 7, *BASE_VERSION, EXTENSION_LEVEL]) + bytes(24) == HELLO_REPLY


def test_nothing_is_read_between_hello_and_the_first_command():
    handshake = Handshake()
    feed(handshake, HELLO, 33)
    assert handshake.wanted() == 0


def test_a_stock_client_is_done_with_its_first_command_unread():
    handshake = Handshake()
    feed(handshake, HELLO, 33)
    handshake.peeked(Command.DEVICE_COUNT)
    assert handshake.stage is Stage.DONE
    assert handshake.extended is None


@pytest.mark.parametrize("step", [1, 41])
def test_ext_hello_is_read_to_its_last_byte_and_not_beyond(step):
    handshake = Handshake()
    feed(handshake, HELLO, 33)
    handshake.peeked(Command.EXT_HELLO)
    assert handshake.wanted() == len(EXT_HELLO)
    assert feed(handshake, EXT_HELLO, step) == b""
    assert handshake.stage is Stage.DONE
    assert handshake.extended == ExtHello(3, Role.ATTACH, session=7)
    assert handshake.wanted() == 0


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (b"G", "the first byte is 71"),
        (bytes([Command.DEVICE_COUNT]), "HELLO begins with 14"),
        (REQUEST_HEADER.pack(Command.HELLO, 0), r"does not speak ggml RPC 7\.0\.0; update"),
    ],
)
def test_a_stranger_is_known_as_early_as_its_bytes_allow(words, reason):
    with pytest.raises(ProtocolError, match=reason):
        feed(Handshake(), words, 1)


def test_ext_hello_of_another_size_is_refused_by_its_header():
    handshake = Handshake()
    feed(handshake, HELLO, 33)
    handshake.peeked(Command.EXT_HELLO)
    with pytest.raises(ProtocolError, match="33 bytes where 32 are due"):
        feed(handshake, REQUEST_HEADER.pack(Command.EXT_HELLO, 33), 1)
