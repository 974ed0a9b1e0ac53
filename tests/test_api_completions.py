"""/v1/completions and /v1/chat/completions with a model of random weights, over HTTP."""

from __future__ import annotations

import json

import pytest

import make_model
from make_model import ModelSpec
from tests.api_server import api_server, events
from tests.commands import ringline
from tests.peers.processes import run_python

SPEC = ModelSpec(type="q8_0")
PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def server(small):
    with api_server(small, "--parallel", 4, "-c", 4096) as found:
        yield found


def completion(server, **fields):
    body = {"prompt": PROMPT, "max_tokens": 12, "temperature": 0, **fields}
    return server.ask("/v1/completions", body)


def test_greedy_text_is_what_generate_writes(server, small):
    # Over a node, whose CPU does not re-order weights either: see test_engine_process.
    options = ("-m", small, "--local-stages", 1, "-t", 1, "--temp", 0, "-n", 12, "--json")
    expected = json.loads(ringline("generate", *options, "-p", PROMPT).out)
    answer = completion(server).json()
    assert answer["choices"][0]["text"] == expected["text"]
    assert answer["choices"][0]["finish_reason"] == "length"
    n_prompt = expected["prompt_tokens"]
    found = answer["usage"]
    assert (found["prompt_tokens"], found["completion_tokens"]) == (n_prompt, 12)
    assert found["total_tokens"] == n_prompt + 12


def test_a_stream_gives_the_same_text_and_ends_with_the_usage(server):
    whole = completion(server).json()
    streamed = completion(server, stream=True, stream_options={"include_usage": True})
    assert streamed.headers["content-type"].startswith("text/event-stream")
    *texts, last = events(streamed.body)
    assert "".join(chunk["choices"][0]["text"] for chunk in texts) == whole["choices"][0]["text"]
    assert [chunk["usage"] for chunk in texts] == [None] * len(texts)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in texts]
    assert reasons == [None] * (len(texts) - 1) + ["length"]


def test_several_prompts_and_choices_come_in_order(server):
    answer = completion(server, prompt=["Go", "Stop"], n=2).json()
    texts = [choice["text"] for choice in answer["choices"]]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert texts[0] == texts[1] == completion(server, prompt="Go").json()["choices"][0]["text"]
    assert texts[2] == texts[3] == completion(server, prompt="Stop").json()["choices"][0]["text"]
    assert answer["usage"]["completion_tokens"] == 48


def test_tokens_are_a_prompt_too(server):
    tokens = server.ask("/tokenize", {"content": PROMPT, "add_special": True}).json()["tokens"]
    assert (
        completion(server, prompt=tokens).json()["choices"] == completion(server).json()["choices"]
    )
    assert len(completion(server, prompt=[tokens, tokens]).json()["choices"]) == 2


def test_a_seed_gives_the_same_text_again_and_each_choice_another(server):
    first, second = (
        completion(server, temperature=1.5, seed=7, n=3).json()["choices"] for _ in range(2)
    )
    assert first == second
    assert len({choice["text"] for choice in first}) == 3


def test_a_conversation_is_answered_whole_and_as_a_stream(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 9, "temperature": 0}
    whole = server.ask("/v1/chat/completions", body).json()
    message = whole["choices"][0]["message"]
    assert message["role"] == "assistant"
    chunks = events(server.ask("/v1/chat/completions", {**body, "stream": True}).body)
    first, *texts, last = [chunk["choices"][0] for chunk in chunks]
    assert first["delta"] == {"role": "assistant", "content": None}
    assert "".join(text["delta"]["content"] for text in texts) == message["content"]
    assert (last["delta"], last["finish_reason"]) == ({}, "length")
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_it_is_there_and_says_what_it_serves(server):
    assert server.ask("/health").json() == {"status": "ok"}
    assert server.ask("/v1/models").json()["data"][0]["id"] == "small"
    assert server.ask("/v1/models/small").json()["meta"]["n_vocab"] == SPEC.vocab
    assert server.ask("/v1/models/large").error["code"] == "model_not_found"
    assert [slot["is_processing"] for slot in server.ask("/slots").json()] == [False] * 4
    slot = server.ask("/slots").json()[0]
    assert (slot["id"], slot["id_task"], slot["n_ctx"], slot["state"]) == (0, -1, 1024, "idle")
    assert server.ask("/props").json()["total_slots"] == 4


def test_the_http_process_loads_no_library():
    script = (
        "import sys, ringline.api.run, ringline.cli.api; maps = open('/proc/self/maps').read(); "
        "print('llama_cpp' in sys.modules or 'libggml' in maps or 'libllama' in maps)"
    )
    assert run_python(["-c", script]).strip() == "False"
