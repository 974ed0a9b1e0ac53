"""Everything a client can do wrong: a 4xx with one sentence in OpenAI's shape, never a hang."""

from __future__ import annotations

import http.client
import json
import subprocess

import pytest

import make_model
from make_model import ModelSpec
from tests.api_server import api_server
from tests.peers.processes import patience

HI = [{"role": "user", "content": "Hi"}]
COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )


@pytest.fixture(scope="module")
def server(small):
    with api_server(small, "--parallel", 2, "-c", 512) as found:
        yield found


def schema(value):
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": value}}


@pytest.mark.parametrize(
    ("path", "fields", "param", "sentence"),
    [
        (COMPLETIONS, {"prompt": None}, "prompt", "prompt"),
        (COMPLETIONS, {"prompt": []}, "prompt", "prompt must be a text"),
        (COMPLETIONS, {"prompt": ["a", 1]}, "prompt", "prompt must be a text"),
        (COMPLETIONS, {"prompt": {"a": 1}}, "prompt", "must have prompt_string, or content"),
        (COMPLETIONS, {"prompt": {"prompt_string": 5}}, "prompt.prompt_string", "expected `str"),
        (
            COMPLETIONS,
            {"prompt": [{"prompt_string": "a", "multimodal_data": ["x"]}]},
            "prompt",
            "something else than text",
        ),
        (COMPLETIONS, {"prompt": {"content": [{"type": "image_url"}]}}, "prompt", "only that is"),
        (COMPLETIONS, {"prompt": [100000]}, "prompt", "token 100000"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt", "token -1"),
        (COMPLETIONS, {"prompt": [1 << 70]}, "prompt", "it must fit into 64 bits"),
        (
            COMPLETIONS,
            {"max_tokens": 1 << 70},
            "max_tokens",
            "max_tokens is 1180591620717411303424",
        ),
        (COMPLETIONS, {"temperature": "hot"}, "temperature", "expected `float | null`, got `str`"),
        (COMPLETIONS, {"top_p": 2}, "top_p", "top_p is 2"),
        (COMPLETIONS, {"min_p": -1}, "min_p", "it must be from 0 to 1"),
        (COMPLETIONS, {"max_tokens": -5}, "max_tokens", "max_tokens is -5: it must be from 0"),
        (COMPLETIONS, {"n_predict": -2, "max_tokens": None}, "n_predict", "n_predict is -2"),
        (CHAT, {"max_completion_tokens": -3}, "max_completion_tokens", "max_completion_tokens is"),
        (COMPLETIONS, {"repeat_last_n": -7}, "repeat_last_n", "repeat_last_n is -7"),
        (COMPLETIONS, {"prompt": [[]]}, "prompt", "the prompt is empty"),
        (COMPLETIONS, {"n": 0}, "n", "it must be from 1 to 128"),
        (COMPLETIONS, {"n": 129}, "n", "it must be from 1 to 128"),
        (COMPLETIONS, {"logprobs": 101}, "logprobs", "it must be from 0 to 100"),
        (COMPLETIONS, {"stop": ""}, "stop", "empty string"),
        (COMPLETIONS, {"stop": ["a"] * 65}, "stop", "64 are allowed"),
        (COMPLETIONS, {"logit_bias": {"one": 1}}, "logit_bias", "no number of a token"),
        (COMPLETIONS, {"logit_bias": [[1 << 70, 1]]}, "logit_bias", "no number of a token"),
        (COMPLETIONS, {"logit_bias": {"100000": 1}}, "logit_bias", "names token 100000"),
        (COMPLETIONS, {"repeat_penalty": 0}, "repeat_penalty", "it must be above 0"),
        (COMPLETIONS, {"echo": True}, "echo", "not supported"),
        (COMPLETIONS, {"suffix": "x"}, "suffix", "not supported"),
        (COMPLETIONS, {"best_of": 2}, "best_of", "not supported"),
        (COMPLETIONS, {"grammar": "no grammar"}, "grammar", "the grammar cannot be used"),
        (COMPLETIONS, {"grammar": "root ::= " + "(" * 30_000}, "grammar", "1000 brackets"),
        (COMPLETIONS, {"grammar": 'root ::= (("a"?){0,99}){0,99}'}, "grammar", "1000 ways"),
        (
            COMPLETIONS,
            {"json_schema": {"type": "string", "pattern": "^((a?){0,99}){0,99}$"}},
            "json_schema",
            "1000 ways",
        ),
        (COMPLETIONS, {"grammar": "a" * 70_000}, "grammar", "65536 are allowed"),
        (COMPLETIONS, {"json_schema": {"type": "hiccup"}}, "json_schema", "cannot be used"),
        (COMPLETIONS, {"stream_options": {}}, "stream_options", "only allowed with stream"),
        (CHAT, {"messages": None}, "messages", "messages"),
        (CHAT, {"messages": "string"}, "messages", "expected `array`, got `str`"),
        (CHAT, {"messages": []}, "messages", "messages is empty"),
        (CHAT, {"messages": [123]}, "messages[0]", "expected `object`, got `int`"),
        (CHAT, {"messages": [{}]}, "messages[0].role", "is missing"),
        (CHAT, {"messages": [{"role": "user"}]}, "messages[0].content", "has no content"),
        (CHAT, {"messages": [{"role": "god", "content": "x"}]}, "messages[0].role", "god"),
        (
            CHAT,
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[0].content",
            "only text is supported",
        ),
        (CHAT, {"response_format": {"type": "sound"}}, "response_format", "'sound'"),
        (CHAT, {"response_format": {"type": "json_schema"}}, "response_format", "is missing"),
        (CHAT, {"response_format": schema(123)}, "response_format", "must be an object"),
        (
            CHAT,
            {"response_format": schema({"type": "string", "maxLength": 10**9})},
            "response_format",
            "maxLength is 1000000000",
        ),
        (CHAT, {"response_format": schema({"type": "hiccup"})}, "response_format", "cannot be"),
        (CHAT, {"response_format": schema({"$ref": "https://x/y"})}, "response_format", "cannot"),
        (
            CHAT,
            {"response_format": schema({}), "grammar": 'root ::= "a"'},
            "response_format",
            "exclude each other",
        ),
        (CHAT, {"top_logprobs": 3}, "top_logprobs", "needs logprobs"),
        (CHAT, {"functions": []}, "functions", "give tools"),
        (CHAT, {"modalities": ["audio"]}, "modalities", "only text"),
        (CHAT, {"tools": [{"type": "function"}]}, "tools[0].function", "is missing"),
        (CHAT, {"tools": [TOOL], "tool_choice": "maybe"}, "tool_choice", "'maybe'"),
        (CHAT, {"tool_choice": "required"}, "tool_choice", "does not have"),
        (
            CHAT,
            {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "sub"}}},
            "tool_choice",
            "does not have",
        ),
        ("/tokenize", {"content": 5}, "content", "expected `str`, got `int`"),
        ("/detokenize", {"tokens": [100000]}, None, "not in the vocabulary"),
        ("/apply-template", {"messages": []}, "messages", "empty"),
    ],
)
def test_a_wrong_field_is_told_with_its_name(path, fields, param, sentence, server):
    bases = {COMPLETIONS: {"prompt": "Go"}, CHAT: {"messages": HI}}
    answer = server.ask(path, {**bases.get(path, {}), "max_tokens": 1, **fields})
    assert answer.status == 400
    assert answer.error["type"] == "invalid_request_error"
    assert sentence in answer.error["message"]
    assert answer.error["param"] == param


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_is_too_long_is_told_before_a_stream_begins(stream, server):
    body = {"prompt": "word " * 2000, "stream": stream}
    answer = server.ask(COMPLETIONS, body)
    assert answer.status == 400
    assert answer.error["code"] == "context_length_exceeded"
    assert answer.error["param"] == "prompt"
    assert "the context of one request holds 256" in answer.error["message"]
    server.wait_idle()


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[]", "expected `object`, got `array`"),
        (b'{"prompt": "\\ud800"}', "not valid JSON"),
        (b"[" * 1_000_000, "expected `object`, got `array`"),
        (b'{"prompt": "Go", "json_schema": ' + b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_body_that_is_no_request_is_told_so(body, sentence, server):
    answer = server.ask(COMPLETIONS, body)
    assert answer.status == 400
    assert sentence in answer.error["message"]


def test_a_body_without_an_end_is_refused(server):
    answer = server.ask(COMPLETIONS, b'{"prompt": "' + b"a" * (16 << 20) + b'"}')
    assert (answer.status, answer.error["type"]) == (413, "invalid_request_error")


def test_a_grammar_that_allows_nothing_fails_its_request_alone(server):
    bias = {str(token): False for token in range(512)}
    answer = server.ask(COMPLETIONS, {"prompt": "Go", "max_tokens": 3, "logit_bias": bias})
    assert answer.status == 400
    assert "allows no token here" in answer.error["message"]
    assert server.ask(COMPLETIONS, {"prompt": "Go", "max_tokens": 3}).status == 200


def test_other_paths_and_methods_have_the_same_shape(server):
    assert server.ask("/v1/nothing").status == 404
    assert server.ask("/v1/nothing").error["type"] == "not_found_error"
    wrong = server.ask(COMPLETIONS)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert wrong.error["message"] == "/v1/completions takes POST, and not GET"
    assert server.ask("/v1/models", {}).status == 405
    head = server.ask("/health", method="HEAD")
    assert (head.status, head.body) == (200, b"")


def test_only_those_who_bring_a_key_are_answered(small):
    with api_server(small, "--api-key", "first", "--api-key", "zweiter-schlüssel") as server:
        for headers in ({}, {"Authorization": "Bearer firs"}, {"Authorization": "Basic first"}):
            answer = server.ask("/v1/models", headers=headers)
            assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")
            assert answer.headers["www-authenticate"] == "Bearer"
        umlaut = "zweiter-schlüssel".encode().decode("latin-1")  # its bytes, as a header has them
        for key in ("first", umlaut):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.ask("/v1/models", headers=headers).status == 200
        for headers in ({"authorization": "bearer  first"}, {"X-Api-Key": "first"}):
            assert server.ask("/v1/models", headers=headers).status == 200
        assert server.ask("/health").status == 200
        assert server.ask(COMPLETIONS, b"[" * 100).status == 401


def test_keys_come_from_the_environment_too(small):
    with api_server(small, env={"RINGLINE_API_KEY": "one, two"}) as server:
        assert server.ask("/v1/models").status == 401
        for key in ("one", "two"):
            headers = {"Authorization": f"Bearer {key}"}
            assert server.ask("/v1/models", headers=headers).status == 200


def test_a_connection_is_kept_after_an_error(server):
    found = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=patience(30))
    for _ in range(3):
        found.request("POST", COMPLETIONS, b"{}", {"Content-Type": "application/json"})
        answer = found.getresponse()
        assert json.loads(answer.read())["error"]["param"] == "prompt"
    found.close()


def test_curl_is_answered(server):
    body = json.dumps({"prompt": "Go", "max_tokens": 3, "temperature": 0, "stream": True})
    command = ["curl", "-sS", "--fail", "-N", server.url + COMPLETIONS, "-d", body]
    run = subprocess.run(command, capture_output=True, text=True, timeout=patience(60), check=True)
    assert run.stdout.strip().endswith("data: [DONE]")
