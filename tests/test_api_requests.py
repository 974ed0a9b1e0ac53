"""What the fields of a request become: parameters, prompts, tools. Pure."""

from __future__ import annotations

import math

import msgspec
import pytest

from ringline.api.errors import ApiError
from ringline.api.requests.chat import ChatBody
from ringline.api.requests.completion import CompletionBody
from ringline.api.requests.messages import Message, template_messages
from ringline.api.requests.tools import Tool, ToolChoice, ToolFormat, ToolUse
from ringline.llama.parameters import RANDOM_SEED, SamplingParams

ADD = msgspec.convert({"type": "function", "function": {"name": "add", "description": "x"}}, Tool)
QWEN = "{% if tools %}<tools></tools><tool_call>{% endif %}"
LLAMA3 = '{% if tools %}{"name": function, "parameters": {}}{% endif %}'
MISTRAL = "{% if tools %}[AVAILABLE_TOOLS]{% endif %}[TOOL_CALLS]"


def completion(**fields):
    return msgspec.convert({"prompt": "Go", **fields}, CompletionBody)


def test_what_is_not_given_has_llamas_defaults():
    assert completion().sampling(100, None) == SamplingParams()
    assert completion(temperature=None, top_k=None).sampling(100, None) == SamplingParams()
    assert completion().limit() == -1


def test_fields_become_parameters():
    body = completion(
        temperature=0,
        top_k=3,
        repeat_penalty=1.5,
        repeat_last_n=-1,
        logit_bias={"5": -100, "6": False, "7": True},
        dry_sequence_breakers=["a"],
        mirostat=2,
    )
    params = body.sampling(100, "g")
    assert (params.temperature, params.top_k, params.repeat_penalty) == (0, 3, 1.5)
    assert (params.penalty_last_n, params.mirostat, params.grammar) == (100, 2, "g")
    assert params.logit_bias == {5: -100, 6: -math.inf, 7: 0.0}
    assert params.dry_sequence_breakers == ("a",)
    assert completion(logit_bias=[[5, 1.5]]).sampling(1, None).logit_bias == {5: 1.5}


def test_ends_are_forbidden_where_they_are_to_be_ignored():
    def biases(**fields):
        return completion(logit_bias={"5": 1, "9": 50}, **fields).sampling(1, None, ends=(2, 9))

    assert biases().logit_bias == {5: 1, 9: 50}
    assert biases(ignore_eos=True).logit_bias == {5: 1, 9: -math.inf, 2: -math.inf}


@pytest.mark.parametrize(
    ("seed", "choice", "expected"),
    [
        (None, 3, None),
        (-1, 3, None),
        (7, 0, 7),
        (7, 2, 9),
        (RANDOM_SEED, 0, 0),
        (-2, 0, RANDOM_SEED - 2),
    ],
)
def test_a_seed_is_folded_and_counted_on(seed, choice, expected):
    assert completion(seed=seed).sampling(1, None, choice=choice).seed == expected


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
        (["a", [1]], ["a", (1,)]),
        ({"prompt_string": "a"}, ["a"]),
        (
            [[1], {"content": [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]}],
            [(1,), "a b"],
        ),
    ],
)
def test_prompts_have_these_shapes(prompt, expected):
    assert completion(prompt=prompt).prompts() == expected


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"n_predict": 4}, 4),
        ({"max_tokens": 0}, 0),
        ({}, -1),
    ],
)
def test_the_newest_name_of_a_limit_goes_first(fields, limit):
    body = msgspec.convert({"messages": [{"role": "user", "content": "x"}], **fields}, ChatBody)
    (wish,) = body.wishes("x", 10, None, chatml=False)
    assert wish.request.n_predict == limit


def test_arguments_are_objects_for_the_template():
    call = {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    given = {"role": "assistant", "content": None, "tool_calls": [call]}
    (shown,) = template_messages([msgspec.convert(given, Message)])
    function = {"name": "add", "arguments": {"a": 1}}
    calls = [{"type": "function", "function": function, "id": "c"}]
    assert shown == {"role": "assistant", "content": "", "tool_calls": calls}


@pytest.mark.parametrize(
    ("template", "kind"),
    [
        (QWEN, ToolFormat.HERMES),
        (LLAMA3, ToolFormat.LLAMA3),
        (MISTRAL, ToolFormat.MISTRAL),
        (None, ToolFormat.HERMES),
        ("x", ToolFormat.HERMES),
    ],
)
def test_a_template_says_how_its_model_calls(template, kind):
    assert ToolFormat.of(template) is kind


@pytest.mark.parametrize(
    ("choice", "forced", "opening"),
    [(None, False, ""), ("auto", False, ""), ("required", True, "<tool_call>\n")],
)
def test_a_template_with_tools_gets_them_as_they_are(choice, forced, opening):
    use = ToolUse.of([ADD], choice, QWEN)
    assert (use.forced, use.opening, use.native) == (forced, opening, True)
    assert use.variables() == {"tools": (ADD,)}
    assert use.conversation([{"role": "user"}]) == [{"role": "user"}]


@pytest.mark.parametrize(("template", "shown"), [(MISTRAL, True), (QWEN, False), (LLAMA3, False)])
def test_marks_that_are_control_tokens_are_shown(template, shown):
    use = ToolUse.of([ADD], None, template)
    body = msgspec.convert({"messages": [{"role": "user", "content": "x"}]}, ChatBody)
    (wish,) = body.wishes("x", 10, None, chatml=False, special=use.marked)
    assert wish.request.special is shown
    assert use.functions == {"add": None}


def test_a_named_function_is_the_only_one():
    other = msgspec.structs.replace(ADD, function=msgspec.structs.replace(ADD.function, name="sub"))
    choice = msgspec.convert({"function": {"name": "sub"}}, ToolChoice)
    use = ToolUse.of([ADD, other], choice, LLAMA3)
    assert (set(use.functions), use.opening) == ({"sub"}, "")
    schema = msgspec.json.decode(use.grammar_source().schema)
    assert schema["required"] == ["name", "parameters"]
    assert schema["properties"]["name"] == {"const": "sub"}


def test_no_tools_are_used_where_none_are_wanted():
    assert ToolUse.of([], None, QWEN) is None
    assert ToolUse.of([ADD], "none", QWEN) is None
    with pytest.raises(ApiError):
        ToolUse.of([], "required", QWEN)


def test_a_system_message_keeps_its_words_before_the_description():
    use = ToolUse.of([ADD], None, None)
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    shown = use.conversation(messages)
    assert shown[0]["content"].startswith("Be brief.\n\nYou may call")
    assert messages[0]["content"] == "Be brief."
    assert shown[1:] == messages[1:]
