"""A real model over HTTP: its chat template, JSON schemas, tools in and out."""

from __future__ import annotations

import json

import openai
import pytest

from tests.api_server import api_server, events
from tests.peers.processes import patience

pytestmark = pytest.mark.model

CHAT = "/v1/chat/completions"
ASKED = [{"role": "user", "content": "What is 1+1?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "maxLength": 12},
                "days": {"enum": [1, 2, 3]},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"enum": [1, 2]}},
            "required": ["a"],
            "additionalProperties": False,
        },
    },
}
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [30, 40, 50]}},
    "required": ["name", "age"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def server(model_path):
    with api_server(model_path, "--local-stages", 2, "--parallel", 2, "-c", 4096) as found:
        yield found


def chat(server, **fields):
    body = {"messages": ASKED, "temperature": 0, "max_tokens": 60, **fields}
    answer = server.ask(CHAT, body)
    assert answer.status == 200, answer
    return answer.json()["choices"][0]


def test_the_models_own_template_makes_the_prompt(server):
    found = server.ask("/apply-template", {"messages": ASKED}).json()["prompt"]
    assert found.endswith("<|im_start|>user\nWhat is 1+1?<|im_end|>\n<|im_start|>assistant\n")
    ids = server.ask("/tokenize", {"content": found}).json()["tokens"]
    assert server.ask("/detokenize", {"tokens": ids}).json()["content"] == found


def test_the_tokens_of_a_conversation_are_counted_as_they_are_used(server):
    told = server.ask(f"{CHAT}/input_tokens", {"messages": ASKED}).json()
    body = {"messages": ASKED, "max_tokens": 1}
    assert told["input_tokens"] == server.ask(CHAT, body).json()["usage"]["prompt_tokens"]


def test_a_turn_ends_where_the_model_ends_it(server):
    choice = chat(server)
    assert choice["finish_reason"] == "stop"
    assert "1 + 1 = 2" in choice["message"]["content"]
    assert "<|im_end|>" not in choice["message"]["content"]


def test_a_text_goes_on_where_its_end_is_to_be_ignored(server):
    choice = chat(server, ignore_eos=True, max_tokens=30)
    assert choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith(chat(server)["message"]["content"])


def test_roles_and_parts_are_understood(server):
    parts = [{"type": "text", "text": "One"}, {"type": "text", "text": "Two"}]
    messages = [{"role": "developer", "content": "Be brief."}, {"role": "user", "content": parts}]
    found = server.ask("/apply-template", {"messages": messages}).json()["prompt"]
    assert "system\nBe brief.<|im_end|>" in found
    assert "user\nOne\nTwo<|im_end|>" in found


@pytest.mark.parametrize(
    "fields",
    [
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "p", "schema": PERSON},
            }
        },
        {"response_format": {"type": "json_object", "schema": PERSON}},
        {"json_schema": PERSON},
    ],
)
def test_a_schema_is_kept_to(fields, server):
    choice = chat(server, **fields)
    found = json.loads(choice["message"]["content"])
    assert set(found) == {"name", "age"}
    assert found["age"] in (30, 40, 50)
    assert choice["finish_reason"] == "stop"


def test_any_object_is_json_as_far_as_it_goes(server):
    choice = chat(server, response_format={"type": "json_object"}, max_tokens=40)
    assert choice["message"]["content"].lstrip().startswith("{")


@pytest.mark.parametrize(
    ("choice", "tools", "names"),
    [
        ("required", [WEATHER], {"get_weather"}),
        ("required", [WEATHER, ADD], {"get_weather", "add"}),
        ({"type": "function", "function": {"name": "add"}}, [WEATHER, ADD], {"add"}),
    ],
)
def test_a_call_that_is_wanted_comes_with_arguments_of_its_schema(choice, tools, names, server):
    found = chat(server, tools=tools, tool_choice=choice)
    (call,) = found["message"]["tool_calls"]
    assert (found["finish_reason"], found["message"]["content"]) == ("tool_calls", None)
    assert (call["type"], len(call["id"])) == ("function", 9)
    assert call["function"]["name"] in names
    arguments = json.loads(call["function"]["arguments"])
    assert set(arguments) == {"a"} if call["function"]["name"] == "add" else {"city", "days"}


def test_a_streamed_call_comes_in_deltas(server):
    body = {"messages": ASKED, "temperature": 0, "tools": [WEATHER], "tool_choice": "required"}
    whole = chat(server, tools=[WEATHER], tool_choice="required")["message"]["tool_calls"][0]
    chunks = [e["choices"][0] for e in events(server.ask(CHAT, {**body, "stream": True}).body)]
    deltas = [c["delta"]["tool_calls"][0] for c in chunks if "tool_calls" in c["delta"]]
    assert (deltas[0]["function"]["name"], deltas[0]["index"]) == ("get_weather", 0)
    assert len(deltas) > 3
    assert "".join(d["function"]["arguments"] for d in deltas) == whole["function"]["arguments"]
    assert chunks[-1]["finish_reason"] == "tool_calls"


def test_tools_and_their_results_reach_a_template_that_knows_none(server):
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "user", "content": "Add"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
    ]
    body = {"messages": messages, "tools": [ADD]}
    prompt = server.ask("/apply-template", body).json()["prompt"]
    assert '<tools>\n{"function":{"name":"add"' in prompt
    assert '<tool_call>\n{"name":"add","arguments":{"a":1}}\n</tool_call>' in prompt
    assert "<tool_response>\n2\n</tool_response>" in prompt
    none = server.ask("/apply-template", {**body, "tool_choice": "none"}).json()["prompt"]
    assert "<tools>" not in none


def test_the_openai_package_reads_calls(server):
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", timeout=patience(120))
    with (
        client,
        client.chat.completions.stream(
            model="any", messages=ASKED, temperature=0, tools=[ADD], tool_choice="required"
        ) as stream,
    ):
        found = stream.get_final_completion().choices[0]
    assert found.message.tool_calls[0].function.name == "add"
    assert json.loads(found.message.tool_calls[0].function.arguments)["a"] in (1, 2)


def test_an_answer_without_a_call_is_text(server):
    found = chat(server, tools=[WEATHER], tool_choice="auto", max_tokens=20)
    assert found["message"]["content"] or found["message"]["tool_calls"]


def test_the_second_turn_finds_the_first_in_the_cache(server):
    first = server.ask(CHAT, {"messages": ASKED, "temperature": 0, "max_tokens": 10}).json()
    turns = [*ASKED, first["choices"][0]["message"], {"role": "user", "content": "And 2+2?"}]
    second = server.ask(CHAT, {"messages": turns, "temperature": 0, "max_tokens": 4}).json()
    usage = second["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > first["usage"]["prompt_tokens"] - 5
