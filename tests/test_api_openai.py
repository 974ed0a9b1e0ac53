"""The official `openai` package against `ringline api`: sync, async, streams, its exceptions."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import ExitStack

import openai
import pytest

import make_model
from make_model import ModelSpec
from tests.api_server import api_server
from tests.peers.processes import patience

HI = [{"role": "user", "content": "Hi"}]
GREEDY = {"model": "any", "temperature": 0, "max_tokens": 10}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )


@pytest.fixture(scope="module")
def server(small):
    with api_server(small, "--parallel", 4, "-c", 4096, "--api-key", "secret") as found:
        yield found


def options(server):
    return {
        "base_url": f"{server.url}/v1",
        "api_key": "secret",
        "max_retries": 0,
        "timeout": patience(60),
    }


@pytest.fixture
def client(server):
    with openai.OpenAI(**options(server)) as found:
        yield found


def test_a_completion_has_all_that_the_package_knows(client):
    found = client.completions.create(prompt="Go", logprobs=2, **GREEDY)
    choice = found.choices[0]
    assert found.object == "text_completion"
    assert choice.finish_reason == "length"
    assert all(choice.text[offset:] for offset in choice.logprobs.text_offset)
    assert [len(top) for top in choice.logprobs.top_logprobs] == [2] * 10
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs)
    offsets = choice.logprobs.text_offset
    assert offsets[0] == 0
    assert offsets == sorted(offsets)
    assert found.usage.total_tokens == found.usage.prompt_tokens + 10


def test_a_streamed_completion_is_the_same(client):
    whole = client.completions.create(prompt="Go", logprobs=1, **GREEDY).choices[0]
    chunks = list(client.completions.create(prompt="Go", logprobs=1, stream=True, **GREEDY))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.text
    tokens = [
        t for chunk in chunks if chunk.choices[0].logprobs for t in chunk.choices[0].logprobs.tokens
    ]
    offsets = [
        o
        for chunk in chunks
        if chunk.choices[0].logprobs
        for o in chunk.choices[0].logprobs.text_offset
    ]
    assert (tokens, offsets) == (whole.logprobs.tokens, whole.logprobs.text_offset)


def test_a_chat_has_all_that_the_package_knows(client):
    found = client.chat.completions.create(
        messages=HI, logprobs=True, top_logprobs=3, n=2, **GREEDY
    )
    assert found.object == "chat.completion"
    for choice in found.choices:
        entries = choice.logprobs.content
        assert (
            b"".join(bytes(entry.bytes) for entry in entries).decode("utf-8", "replace")
            == choice.message.content
        )
        assert [len(entry.top_logprobs) for entry in entries] == [3] * 10
        assert all(entry.logprob <= entry.top_logprobs[0].logprob for entry in entries)
    assert found.choices[0].message == found.choices[1].message
    assert found.usage.completion_tokens == 20


def test_a_streamed_chat_ends_with_its_usage(client):
    chunks = list(
        client.chat.completions.create(
            messages=HI, stream=True, stream_options={"include_usage": True}, n=2, **GREEDY
        )
    )
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == 20
    ends = [c for chunk in chunks for c in chunk.choices if c.finish_reason]
    assert sorted((end.index, end.finish_reason) for end in ends) == [(0, "length"), (1, "length")]


def test_the_packages_own_collector_of_streams_works(client):
    # It takes a text that is cut off for an error.
    grammar = {"grammar": 'root ::= "So be it."', "repeat_penalty": 1.0}
    with client.chat.completions.stream(messages=HI, extra_body=grammar, **GREEDY) as stream:
        found = stream.get_final_completion()
    assert found.choices[0].message.content == "So be it."
    assert found.choices[0].finish_reason == "stop"


def test_a_stop_string_ends_the_text_also_across_tokens(client):
    whole = client.completions.create(prompt="Go", logprobs=0, **GREEDY).choices[0]
    place = whole.logprobs.text_offset[2]
    stop = whole.text[place - 1 : place + 1]
    found = client.completions.create(prompt="Go", stop=["never", stop], **GREEDY).choices[0]
    assert found.finish_reason == "stop"
    assert found.text == whole.text[: whole.text.index(stop)]


def test_a_bias_forbids_and_favours_tokens(client):
    whole = client.completions.create(prompt="Go", logprobs=0, **GREEDY)
    found = client.completions.create(prompt="Go", logit_bias={"300": 100}, logprobs=1, **GREEDY)
    assert found.choices[0].text != whole.choices[0].text
    assert len(set(found.choices[0].logprobs.tokens)) == 1


def test_penalties_and_limits_change_the_text(client):
    texts = {
        client.completions.create(prompt="Go", **GREEDY | more).choices[0].text
        for more in (
            {},
            {"presence_penalty": -50},
            {"extra_body": {"repeat_penalty": 8.0, "repeat_last_n": -1}},
            {"temperature": 1.9, "seed": 1, "extra_body": {"top_k": 0, "min_p": 0, "top_p": 1}},
        )
    }
    assert len(texts) == 4


def test_models_are_listed(client):
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").owned_by == "ringline"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("large")


def test_errors_are_the_packages_own(client):
    with pytest.raises(openai.BadRequestError, match="the context of one request holds") as told:
        client.completions.create(prompt="word " * 5000, **GREEDY)
    assert told.value.code == "context_length_exceeded"
    with pytest.raises(openai.BadRequestError) as told:
        client.completions.create(prompt="Go", top_p=2, **GREEDY)
    assert told.value.param == "top_p"
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()


def test_many_async_streams_run_side_by_side(server):
    async def text(client, prompt):
        stream = await client.completions.create(prompt=prompt, stream=True, **GREEDY)
        return "".join([chunk.choices[0].text async for chunk in stream])

    async def run():
        async with openai.AsyncOpenAI(**options(server)) as client:
            prompts = [f"Number {n % 4}" for n in range(12)]
            return await asyncio.gather(*(text(client, prompt) for prompt in prompts))

    texts = asyncio.run(run())
    assert texts[:4] == texts[4:8] == texts[8:]
    assert len(set(texts)) == 4


def test_an_engine_that_dies_raises_in_the_stream_and_the_next_request_works(small):
    with ExitStack() as stack:
        server = stack.enter_context(api_server(small, "--parallel", 1, "-c", 16384))
        stream = stack.enter_context(openai.OpenAI(**options(server))).completions.create(
            model="any", prompt="Go", stream=True, temperature=0
        )
        next(stream)
        os.kill(server.engine_pid(), signal.SIGKILL)
        with pytest.raises(openai.APIError, match="was killed by SIGKILL"):
            list(stream)
        # Retry-After makes the package wait, and come again by itself.
        again = stack.enter_context(openai.OpenAI(**{**options(server), "max_retries": 20}))
        assert again.completions.create(prompt="Go", **GREEDY).choices[0].text
