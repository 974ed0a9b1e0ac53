"""/v1/embeddings over HTTP: with OpenAI's own client, and whatever else one may send."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from contextlib import ExitStack

import numpy as np
import openai
import pytest

import make_model
from make_model import ModelSpec
from ringline import Engine, Ring
from ringline.engine.embedding import EmbeddingOptions
from tests.api_server import api_server
from tests.encoder_model import CONTEXT, EMBD, make_encoder
from tests.peers.processes import patience
from tests.rings import open_peers

SPEC = ModelSpec(type="q8_0", vocab=2000)
TEXTS = ["Once upon a time", "the cat sat on the mat and looked at the moon"]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("decoder") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder") / "bert.gguf")


@pytest.fixture(scope="module")
def server(decoder):
    """Over two nodes."""
    with ExitStack() as stack:
        nodes = ",".join(peer.endpoint for peer in open_peers(stack, "rr"))
        options = ["--rpc", nodes, "-ts", "1,1", "-c", 1024, "--parallel", 2, "--embeddings"]
        yield stack.enter_context(api_server(decoder, *options))


@pytest.fixture(scope="module")
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as found:
        yield found


@pytest.fixture(scope="module")
def expected(decoder):
    """What an engine on this machine says."""
    with Ring() as ring:
        placed = ring.place(decoder, n_threads=1, repack=False)
        with Engine(ring, placed, parallel=1, n_ctx=256, embeddings=EmbeddingOptions()) as engine:
            yield [one.vector for one in engine.embed(TEXTS).result()]


def ask(server, **fields):
    return server.ask("/v1/embeddings", {"input": TEXTS, **fields})


@pytest.mark.parametrize("encoding", ["float", "base64", openai.omit])
def test_openais_client_gets_the_engines_vectors(client, expected, encoding):
    answer = client.embeddings.create(model="small", input=TEXTS, encoding_format=encoding)
    assert [entry.index for entry in answer.data] == [0, 1]
    assert answer.model == "small"
    for entry, vector in zip(answer.data, expected, strict=True):
        found = entry.embedding
        if isinstance(found, str):
            found = np.frombuffer(base64.b64decode(found), "<f4")
        assert np.array_equal(np.array(found, np.float32), vector)
        assert abs(float(np.linalg.norm(vector)) - 1) < 1e-6
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > 10


def test_an_input_is_a_text_or_tokens_or_a_list_of_them(server):
    tokens = [
        server.ask("/tokenize", {"content": text, "add_special": True}).json()["tokens"]
        for text in TEXTS
    ]
    both = ask(server).json()
    assert ask(server, input=tokens).json() == both
    assert ask(server, input=[TEXTS[0], tokens[1]]).json() == both
    one = ask(server, input=TEXTS[0]).json()
    assert ask(server, input=tokens[0]).json() == one
    assert one["usage"] == {"prompt_tokens": len(tokens[0]), "total_tokens": len(tokens[0])}
    assert server.ask("/embeddings", {"input": TEXTS}).json() == both


@pytest.mark.parametrize(
    ("fields", "param", "what"),
    [
        ({"input": []}, "input", "must be a text, a list of texts"),
        ({"input": [5, "x"]}, "input", "must be a text, a list of texts"),
        ({"input": 7}, "input", "expected"),
        ({"input": ["x"] * 2049}, "input", "2049 entries: 2048 are allowed"),
        ({"input": ["x", []]}, "input", "input 2 is empty"),
        ({"input": [[5] * 513]}, "input", "513 tokens and at most 512"),
        ({"input": [[SPEC.vocab]]}, "input", "not in the vocabulary"),
        ({"encoding_format": "hex"}, "encoding_format", "must be one of float, base64"),
        ({"dimensions": SPEC.embd - 1}, "dimensions", f"vectors have {SPEC.embd}"),
        ({"dimensions": "many"}, "dimensions", "expected"),
    ],
)
def test_what_cannot_be_embedded_is_a_400_that_names_the_field(server, fields, param, what):
    answer = ask(server, **fields)
    assert answer.status == 400
    assert answer.error["param"] == param
    assert what in answer.error["message"]
    assert answer.error["type"] == "invalid_request_error"


def counted(server):
    """Tokens embedded so far, of requests that were answered."""
    text = server.ask("/metrics").body.decode()
    (line,) = [line for line in text.splitlines() if 'kind="embedded"' in line]
    return float(line.split()[-1])


def test_embedded_tokens_are_counted(server):
    before = counted(server)
    n_tokens = ask(server).json()["usage"]["total_tokens"]
    deadline = time.monotonic() + patience(30)
    while counted(server) != before + n_tokens:  # the engine is asked twice a second
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_models_own_dimensions_may_be_asked_for(server):
    assert ask(server, dimensions=SPEC.embd).json() == ask(server).json()


def test_texts_are_written_beside(server):
    before = server.ask("/v1/completions", {"prompt": "Go", "max_tokens": 24, "temperature": 0})
    vectors = ask(server).json()
    answers = []

    def embed():
        answers.extend(ask(server).json() for _ in range(4))

    thread = threading.Thread(target=embed)
    thread.start()
    while_so = server.ask("/v1/completions", {"prompt": "Go", "max_tokens": 24, "temperature": 0})
    thread.join(patience(60))
    assert while_so.json()["choices"] == before.json()["choices"]
    assert answers == [vectors] * 4


def test_a_client_that_goes_away_is_waited_for_no_longer(decoder):
    """There is no queue: whoever comes next is told to come again as long as it is computed."""
    with api_server(decoder, "-c", 512, "--parallel", 1, "--queue", 0, "--embeddings") as server:
        port = int(server.url.rpartition(":")[2])
        body = json.dumps({"input": [[5] * 512] * 2000}).encode()
        head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(head.encode() + body)
            server.wait_for("/v1/embeddings", 503, body={"input": "x"})
        answer = server.wait_for("/v1/embeddings", 200, body={"input": "x"})
        assert len(answer.json()["data"]) == 1
        time.sleep(1.0)  # numbers may be half a second old
        assert counted(server) < 512 * 2000


def test_a_server_embeds_only_if_it_was_told_to(decoder):
    with api_server(decoder, "-c", 512, "--parallel", 1) as server:
        answer = ask(server)
        assert (answer.status, answer.error["code"]) == (501, "embeddings_off")
        assert "--embeddings" in answer.error["message"]


def test_an_encoder_embeds_unasked_and_writes_nothing(encoder):
    with api_server(encoder, "--pooling", "mean") as server:
        answer = ask(server)
        assert len(answer.json()["data"][0]["embedding"]) == EMBD
        assert ask(server, input="").status == 200
        long = ask(server, input=[[5] * (CONTEXT + 1)])
        assert "the model was trained for no more" in long.error["message"]
        refused = server.ask("/v1/completions", {"prompt": "Go"})
        assert refused.status == 400
        assert "writes none" in refused.error["message"]
