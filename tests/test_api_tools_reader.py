"""Calls of tools in what a model writes: the same whatever the pieces are. Pure."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringline.api.tools.reader import CallArguments, CallBegin, Said, ToolReader

NAMES = {
    "add": None,
    "weather": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    },
}
ADD = '{"name": "add", "arguments": {"a": 1, "b": {"c": "}{\\"]"}}}'
WEATHER = '{"name": "weather", "parameters": {"city": "Köln"}}'
TURNED = '{"arguments": {"a": 2}, "name": "add"}'
STRING = '{"name": "add", "arguments": "{\\"a\\": 3}"}'
XML = (
    "<function=weather>\n<parameter=city>\n12 </function> or\n so\n</parameter>\n"
    "<parameter=days>\n3\n</parameter>\n</function>"
)
NO_ARGUMENTS = "<function=add>\n</function>"
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
    (f"<tool_call>\n{XML}\n</tool_call>", False, "", ["weather"]),
    (f"Look: {XML}{NO_ARGUMENTS}.", False, "Look: .", ["weather", "add"]),
    (
        f"<tool_call>\n{NO_ARGUMENTS}\n</tool_call>\n<tool_call>{ADD}</tool_call>",
        False,
        "",
        ["add", "add"],
    ),
    ('<function=add>{"a": 1}</function>', False, "", ["add"]),
    ("<function=other>\n</function>", False, "<function=other>\n</function>", []),
    ("<tool_call> <function=add", False, "<tool_call> <function=add", []),
    ("a<function", False, "a<function", []),
    (f"[TOOL_CALLS] [{ADD}, {WEATHER}]", False, "", ["add", "weather"]),
    (f"I add.[TOOL_CALLS][{STRING}]", False, "I add.", ["add"]),
    (f"[TOOL_CALLS][{OTHER}]", False, f"[TOOL_CALLS][{OTHER}]", []),
    (
        '[TOOL_CALLS]add[ARGS]{"a": "}"}[TOOL_CALLS]weather[CALL_ID]x1[ARGS]{}',
        False,
        "",
        ["add", "weather"],
    ),
    ('[TOOL_CALLS]add{"a": 1}', False, "", ["add"]),
    ('[TOOL_CALLS]other[ARGS]{"a": 1}', False, '[TOOL_CALLS]other[ARGS]{"a": 1}', []),
    ("[TOOL_CALLS]", False, "[TOOL_CALLS]", []),
    ("[1] and [TOOL", False, "[1] and [TOOL", []),
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


def test_blanks_between_a_text_and_a_call_do_not_depend_on_the_pieces():
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    text = f"Hi {call} and \n{call} end"
    whole = read([text], bare=False)
    for place in range(len(text)):
        assert read([text[:place], text[place:]], bare=False) == whole
    assert read(list(text), bare=False) == whole


def test_values_in_xml_are_what_the_schema_says():
    assert read([XML])[1] == [("weather", '{"city":"12 </function> or\\n so","days":3}')]
    untyped = "<function=add><parameter=a>[1]</parameter><parameter=b>b c</parameter></function>"
    assert read([untyped])[1] == [("add", '{"a":[1],"b":"b c"}')]


def test_a_name_that_never_ends_is_text():
    for mark in ("<function=", "[TOOL_CALLS]"):
        reader = ToolReader(NAMES, bare=False)
        assert reader.feed(mark + "x" * 300) == [Said(mark + "x" * 300)]


def test_the_name_of_a_call_is_one_that_mistrals_templates_take():
    (begun, *_) = ToolReader(NAMES, bare=True).feed(ADD)
    assert len(begun.id) == 9
    assert begun.id.isalnum()


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
