"""docs/protocol.md says what the code does: numbers, levels, layouts and replies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ringline.wire import counters, extension, messages, sampling
from ringline.wire import rows as wire_rows
from ringline.wire.commands import RULES, Command, Reply
from ringline.wire.extension import ExtHelloReply
from ringline.wire.messages import Message, Request

DOCUMENT = Path(__file__).parents[1] / "docs" / "protocol.md"
FORMATS = {"u8": "B", "u16": "H", "u32": "I", "u64": "Q", "tensor": "296s"}
SIZES = {"u8": 1, "tensor": 296}


def rows() -> dict[Command, tuple[int, int, str, str]]:
    """Command -> (id, level, body, reply) as the document's tables have them."""
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].isdigit():
            cells = ["0", *cells]
        if len(cells) == 5 and re.fullmatch(r"0x[0-9A-F]{2}|\d+", cells[1]):
            found[Command[cells[2]]] = (int(cells[1], 0), int(cells[0]), cells[3], cells[4])
    return found


def layout(fields: str) -> str:
    """The struct format of `name type, name type[n], tensor, data`."""
    parts = "<"
    for field in filter(None, (field.strip() for field in fields.split(","))):
        kind = field.split()[-1]
        if kind == "data":
            continue
        array = re.fullmatch(r"(\w+)\[(\d+)\]", kind)
        parts += f"{SIZES[array[1]] * int(array[2])}s" if array else FORMATS[kind]
    return parts


def classes() -> dict[Command, type[Request]]:
    """Command -> its message class."""
    names = [
        (module, name)
        for module in (messages, extension, counters, wire_rows, sampling)
        for name in module.__all__
    ]
    values = [getattr(module, name) for module, name in names]
    return {
        value.COMMAND: value
        for value in values
        if isinstance(value, type) and issubclass(value, Request) and value is not Request
    }


def test_every_command_stands_in_the_document_and_no_other():
    assert set(rows()) == set(Command)


@pytest.mark.parametrize("command", Command)
def test_numbers_and_levels_are_those_of_the_code(command):
    number, level, _, _ = rows()[command]
    assert (number, level) == (command.value, RULES[command].level)


@pytest.mark.parametrize("command", sorted(classes()))
def test_the_documented_body_is_the_layout(command):
    _, _, body, _ = rows()[command]
    assert layout(body) == classes()[command].LAYOUT.format


@pytest.mark.parametrize("command", Command)
def test_the_documented_reply_is_the_layout(command):
    _, _, _, reply = rows()[command]
    kind = RULES[command].reply
    assert (kind is Reply.NONE) == (reply == "none")
    answer = getattr(classes().get(command), "Reply", None)
    if command is Command.EXT_HELLO:
        answer = ExtHelloReply
    if isinstance(answer, type) and issubclass(answer, Message):
        assert layout(reply) == answer.LAYOUT.format
    else:
        assert reply in ("none", "data")


@pytest.mark.parametrize("command", Command)
def test_the_smallest_body_is_the_documented_one(command):
    import struct

    _, _, body, _ = rows()[command]
    least = struct.calcsize(layout(body))
    if command is Command.GRAPH_COMPUTE:
        least += 4  # the count of tensors stands behind the node ids
    assert least == RULES[command].least
