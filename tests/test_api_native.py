"""/completion: llama.cpp's own way to continue a text."""

from __future__ import annotations

import json

import pytest

import make_model
from make_model import ModelSpec
from tests.api_server import api_server

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("native")
    model = make_model.make_model(folder / "small.gguf", ModelSpec(type="q8_0"))
    with api_server(model, "--parallel", 2, "-c", 1024) as found:
        yield found


def completion(server, **fields):
    body = {"prompt": PROMPT, "n_predict": 8, "temperature": 0, **fields}
    return server.ask("/completion", body)


def streamed(answer):
    lines = answer.body.decode().split("\n")
    return [json.loads(line.removeprefix("data: ")) for line in lines if line]


def test_the_text_is_that_of_openais_completions(server):
    found = completion(server, return_tokens=True).json()
    other = server.ask(
        "/v1/completions", {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
    ).json()
    assert found["content"] == other["choices"][0]["text"]
    assert found["tokens_evaluated"] == other["usage"]["prompt_tokens"]
    assert len(found["tokens"]) == found["tokens_predicted"] == found["timings"]["predicted_n"] == 8
    assert (found["stop"], found["stop_type"], found["truncated"]) == (True, "limit", False)
    assert completion(server).json()["tokens"] == []


def test_several_texts_are_a_list_in_order(server):
    found = completion(server, prompt=[PROMPT, "Go"], n=2).json()
    assert [result["index"] for result in found] == [0, 1, 2, 3]
    assert [result["prompt"] for result in found] == [PROMPT, PROMPT, "Go", "Go"]
    assert found[0]["content"] == found[1]["content"] == completion(server).json()["content"]


def test_a_stream_ends_with_the_event_that_says_so(server):
    *pieces, last = streamed(completion(server, stream=True))
    assert "".join(piece["content"] for piece in pieces) == completion(server).json()["content"]
    assert [piece["stop"] for piece in pieces] == [False] * len(pieces)
    assert (last["stop"], last["content"], last["tokens_predicted"]) == (True, "", 8)
    assert pieces[-1]["tokens_predicted"] == 8


def test_what_was_asked_for_is_told(server):
    text = completion(server).json()["content"]
    found = completion(server, stop=[text[3:6]], seed=7, logit_bias=[[5, False]]).json()
    assert (found["stop_type"], found["stopping_word"]) == ("word", text[3:6])
    settings = found["generation_settings"]
    assert (settings["n_predict"], settings["seed"], settings["stop"]) == (8, 7, [text[3:6]])
    assert settings["logit_bias"] == [{"token": 5, "bias": None}]
    full = completion(server, n_predict=-1).json()
    assert (full["stop_type"], full["truncated"]) == ("limit", True)


def test_probabilities_come_with_each_token(server):
    found = completion(server, n_probs=3).json()["completion_probabilities"]
    assert [len(entry["top_logprobs"]) for entry in found] == [3] * 8
    events = streamed(completion(server, n_probs=3, stream=True))
    assert [e for event in events[:-1] for e in event["completion_probabilities"]] == found
    assert "completion_probabilities" not in completion(server, n_probs=0).json()


def test_a_wrong_value_is_a_400_that_names_it(server):
    answer = completion(server, n_probs=1000)
    assert (answer.status, answer.error["param"]) == (400, "n_probs")
    assert completion(server, prompt=[]).error["param"] == "prompt"
