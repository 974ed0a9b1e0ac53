"""Calls of tools in what a model writes: the same whatever the pieces are. Pure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringline.api.tools.reader import CallArguments, CallBegin, Said, ToolReader

NAMES = frozenset({"add", "weather"})
ADD = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}{\\"]"}}}'
WEATHER = '{"name": "weather", "parameters": {"city": "Köln"}}'
TURNED = '{"arguments": {"a": 2}, "name": "add"}'
STRING = '{"name": "add", "arguments": "{\\"a\\": 3}"}'
OTHER = '{"name": "other", "arguments": {}}'


def read(pieces, *, bare=False):
    """Content, calls as (name, arguments), and whether calls are whole."""
    reader = ToolReader(NAMES, bare=bare)
    told = [event for piece in pieces for event in reader.feed(piece)] + reader.end()
    content = "".join(event.text for event in told if isinstance(event, Said))
    names = [event.name for event in told if isinstance(event, CallBegin)]
    numbers = [event.number for event in told if isinstance(event, CallBegin)]
    assert numbers == list(range(len(names)))
    arguments = [
        "".join(e.text for e in told if isinstance(e, CallArguments) and e.number == number)
        for number in numbers
    ]
    return content, list(zip(names, arguments, strict=True)), reader.called


def cut(text, places):
    """A text in pieces that end at these places."""
    ends = sorted({min(place, len(text)) for place in places} | {len(text)})
    return [text[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


CASES = [
    ("Hello.", False, "Hello.", []),
    ("a < b <tool> </tool_call>", False, "a < b <tool> </tool_call>", []),
    (f"<tool_call>\n{ADD}\n</tool_call>", False, "", ["add"]),
    (f"\n\n<tool_call>{ADD}</tool_call>\n", False, "", ["add"]),
    (f"I add. <tool_call>\n{ADD}\n</tool_call>", False, "I add. ", ["add"]),
    (
        f"<tool_call>\n{ADD}\n</tool_call>\n<tool_call>\n{WEATHER}\n</tool_call>",
        False,
        "",
        ["add", "weather"],
    ),
    (f"<tool_call>{ADD}</tool_call> Done.", False, "Done.", ["add"]),
    (f"<tool_call>{TURNED}</tool_call>", False, "", ["add"]),
    (f"<tool_call>{STRING}</tool_call>", False, "", ["add"]),
    (f"<tool_call>{OTHER}</tool_call>", False, f"<tool_call>{OTHER}</tool_call>", []),
    ("<tool_call>nonsense", False, "<tool_call>nonsense", []),
    (WEATHER, True, "", ["weather"]),
    (f"  {ADD}", True, "", ["add"]),
    (ADD, False, ADD, []),
    (OTHER, True, OTHER, []),
    ('{"a": 1} is JSON', True, '{"a": 1} is JSON', []),
    ("", True, "", []),
]


@pytest.mark.parametrize(("text", "bare", "content", "names"), CASES)
def test_calls_are_told_from_text(text, bare, content, names):
    found, calls, called = read([text], bare=bare)
    assert found == content
    assert [name for name, _ in calls] == names
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in calls)
    assert called == bool(names)


@given(case=st.sampled_from(CASES), places=st.lists(st.integers(0, 120), max_size=12))
def test_the_pieces_make_no_difference(case, places):
    text, bare, _, names = case
    whole = read([text], bare=bare)
    assert read(cut(text, places), bare=bare) == whole
    assert read(list(text), bare=bare) == whole
    assert [name for name, _ in whole[1]] == names


def test_arguments_are_told_while_they_are_written():
    reader = ToolReader(NAMES, bare=False)
    begun = reader.feed('<tool_call>{"name": "add", "arguments": {"a": ')
    assert [type(event) for event in begun] == [CallBegin, CallArguments]
    assert begun[1].text == '{"a": '
    assert reader.feed("1") == [CallArguments(0, "1")]
    assert reader.feed("}} text") == [CallArguments(0, "}"), Said("text")]


def test_a_call_that_is_cut_off_is_no_whole_call():
    content, calls, called = read(['<tool_call>{"name": "add", "arguments": {"a": '])
    assert (content, calls, called) == ("", [("add", '{"a": ')], False)
    content, calls, called = read(['<tool_call>{"name": "ad'])
    assert (content, calls, called) == ('<tool_call>{"name": "ad', [], False)
