"""Chat templates: rendered by llama_cpp's formatter, with every failure one sentence."""

from __future__ import annotations

import json

import pytest

from ringline.errors import CallerError
from ringline.llama.chat_template import CHATML, ChatTemplate

HI = {"role": "user", "content": "Hi"}
#: tools and calls as Qwen's template has them.
TOOLS = (
    "{{ bos_token }}{% if tools %}<tools>{% for tool in tools %}{{ tool | tojson }}{% endfor %}"
    "</tools>{% endif %}{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for call in m.tool_calls or [] %}"
    "<tool_call>{{ call.function.arguments | tojson }}</tool_call>{% endfor %}{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}no thinking{% endif %}"
)


def render(source, *, adds_bos=True, **variables):
    template = ChatTemplate(source, bos="<s>", eos="</s>", adds_bos=adds_bos)
    return template.render(json.dumps({"messages": [HI], **variables}))


def test_a_model_without_a_template_speaks_chatml():
    assert (
        render(None) == render(CHATML) == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(None, add_generation_prompt=False).endswith("<|im_end|>\n")


def test_the_first_token_is_left_to_the_tokenizer_if_it_adds_it():
    assert render(TOOLS) == "user: Hi"
    assert render(TOOLS, adds_bos=False) == "<s>user: Hi"


def test_tools_calls_and_variables_reach_the_template():
    tools = [{"type": "function", "function": {"name": "add"}}]
    call = {"type": "function", "function": {"name": "add", "arguments": {"a": "ü"}}}
    messages = [HI, {"role": "assistant", "content": "", "tool_calls": [call]}]
    found = render(TOOLS, tools=tools, messages=messages, enable_thinking=False)
    assert found.startswith('<tools>{"type": "function", "function": {"name": "add"}}</tools>')
    assert '<tool_call>{"a": "ü"}</tool_call>' in found
    assert found.endswith("no thinking")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "the chat template refuses the conversation"),
        ("{{ messages[0].nothing.at_all }}", "refuses"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ 1 / 0 }}", "division by zero"),
    ],
)
def test_what_a_template_refuses_is_one_sentence(source, reason):
    with pytest.raises(CallerError, match=reason) as told:
        render(source)
    assert "\n" not in str(told.value)


def test_variables_of_the_conversation_cannot_take_the_formatters_place():
    with pytest.raises(CallerError, match="refuses"):
        render(TOOLS, raise_exception="x", bos_token="y")
