"""Embeddings over a ring: llama_cpp's own vectors bit by bit, and what happens when they fail."""

from __future__ import annotations

import json
import threading
import time
from contextlib import ExitStack, contextmanager

import numpy as np
import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.client.edge import Path
from ringline.engine.embedder import EmbedderFacts
from ringline.engine.embedding import EmbeddingOptions, normalized, packed
from ringline.engine.engine import Engine
from ringline.engine.job import Request
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.messages import EngineSpec
from ringline.errors import BusyError, CallerError, EngineError, NetworkError
from ringline.llama.pooling import Pooling
from tests.encoder_model import CONTEXT, EMBD, make_encoder
from tests.peers.processes import run_python
from tests.rings import open_peers

SECONDS = 60.0
TEXTS = ["Once upon a time", "the cat sat on the mat and looked at the moon", "x", "the cat sat"]
SPEC = ModelSpec(type="q8_0", vocab=2000)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("decoder") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return make_encoder(tmp_path_factory.mktemp("encoder") / "bert.gguf")


@pytest.fixture(scope="module")
def endpoints():
    """A ringline node, another one, and a stock server."""
    with ExitStack() as stack:
        yield [peer.endpoint for peer in open_peers(stack, "rrs")]


@contextmanager
def engine_over(
    model, nodes=(), *, pooling=None, n_tokens=512, embeddings=True, path=None, **options
):
    with Ring(nodes, path=path) as ring:
        placed = ring.place(model, n_threads=1, repack=False, tensor_split=[1.0] * len(nodes))
        chosen = EmbeddingOptions(pooling, n_tokens) if embeddings else None
        standard = {"parallel": 2, "n_ctx": 512}
        with Engine(ring, placed, embeddings=chosen, **{**standard, **options}) as engine:
            yield engine


@contextmanager
def held(engine):
    """What is being computed takes until the block ends."""
    go = threading.Event()
    with pytest.MonkeyPatch.context() as patch:
        remote = engine._groups[0]._context._remote
        patch.setattr(remote, "check", lambda: go.wait(SECONDS))
        try:
            yield
        finally:
            go.set()


def vectors(engine, texts, *, normalize=False):
    found = engine.embed(texts, normalize=normalize).result(SECONDS)
    return [embedding.vector for embedding in found]


def stock_vectors(model, pooling, texts, n_tokens=512):
    arguments = ["-m", "tests.peers.stock_embedding", "-m", str(model)]
    arguments += ["--pooling", str(pooling.number), "--tokens", str(n_tokens)]
    found = json.loads(run_python(arguments, stdin=json.dumps(texts)))
    return [np.array(vector, np.float32) for vector in found]


def same(left, right):
    return all(a.tobytes() == b.tobytes() for a, b in zip(left, right, strict=True))


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("kinds", ["", "rr", "rs"])
def test_a_decoders_vectors_are_those_of_llama_cpp(decoder, endpoints, kinds, pooling):
    nodes = {"": [], "rr": endpoints[:2], "rs": endpoints[1:]}[kinds]
    with engine_over(decoder, nodes, pooling=pooling) as engine:
        assert same(vectors(engine, TEXTS), stock_vectors(decoder, pooling, TEXTS))


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("stages", [0, 2])
def test_an_encoders_vectors_are_those_of_llama_cpp(encoder, endpoints, stages, pooling):
    expected = stock_vectors(encoder, pooling, TEXTS, CONTEXT)
    with engine_over(encoder, endpoints[:stages], pooling=pooling) as engine:
        assert same(vectors(engine, TEXTS), expected)


@pytest.mark.model
def test_the_demo_models_vectors_are_those_of_llama_cpp(model_path, endpoints):
    expected = stock_vectors(model_path, Pooling.MEAN, TEXTS)
    with engine_over(model_path, endpoints[:2], pooling=Pooling.MEAN) as engine:
        assert same(vectors(engine, TEXTS), expected)


def test_the_models_file_says_how_to_pool_and_the_mean_is_for_those_that_do_not(
    encoder, decoder, tmp_path
):
    mean = make_encoder(tmp_path / "mean.gguf", pooling=1)
    with engine_over(encoder) as engine:
        first = vectors(engine, TEXTS)
    with engine_over(mean) as engine:
        assert not same(first, vectors(engine, TEXTS))
    with engine_over(mean, pooling=Pooling.CLS) as engine:
        assert same(first, vectors(engine, TEXTS))
    with engine_over(decoder) as plain, engine_over(decoder, pooling=Pooling.MEAN) as chosen:
        assert same(vectors(plain, TEXTS), vectors(chosen, TEXTS))


def test_a_reranker_has_no_embeddings_unless_one_insists(tmp_path):
    reranker = make_encoder(tmp_path / "rerank.gguf", pooling=4)
    with pytest.raises(CallerError, match="reranker"), engine_over(reranker):
        pass
    with engine_over(reranker, pooling=Pooling.CLS) as engine:
        assert len(vectors(engine, TEXTS)) == len(TEXTS)


def test_vectors_have_length_one_unless_they_are_wanted_as_they_are(decoder):
    with engine_over(decoder) as engine:
        raw, unit = vectors(engine, TEXTS), vectors(engine, TEXTS, normalize=True)
    assert same([normalized(vector) for vector in raw], unit)
    assert all(abs(float(np.linalg.norm(vector)) - 1) < 1e-6 for vector in unit)
    assert not same(raw, unit)


def test_tokens_are_taken_as_they_are_and_counted(decoder):
    with engine_over(decoder) as engine:
        tokens = engine.model.tokenize(TEXTS[0])
        text, given = engine.embed([TEXTS[0], tokens]).result(SECONDS)
        assert float(text.vector @ given.vector) > 0.999
        assert text.n_tokens == given.n_tokens == len(tokens)
        assert given.vector.shape == (engine.embedding.width,) == (SPEC.embd,)


def test_more_texts_than_one_batch_holds_are_read_in_several(decoder):
    texts = [f"{number} {TEXTS[1]}" for number in range(40)]
    with engine_over(decoder, n_tokens=128) as engine:
        many = vectors(engine, texts)
        alone = [vectors(engine, [text])[0] for text in texts[:3]]
    assert len({vector.tobytes() for vector in many}) == len(texts)
    # Quantised weights are multiplied with rounded rows: neighbours change the last digits.
    likeness = [float(normalized(a) @ normalized(b)) for a, b in zip(many, alone, strict=False)]
    assert min(likeness) > 0.999


def test_a_vector_does_not_depend_on_what_was_embedded_before(decoder, endpoints):
    with engine_over(decoder, endpoints[:2]) as engine:
        first = vectors(engine, TEXTS)
        vectors(engine, [TEXTS[1] * 3])
        assert same(first, vectors(engine, TEXTS))


def test_texts_are_written_beside_and_say_what_they_say_without(decoder, endpoints):
    with engine_over(decoder, endpoints[:2], embeddings=False) as engine:
        alone = engine.submit("Once upon", n_predict=24).result(SECONDS).ids
    with engine_over(decoder, endpoints[:2]) as engine:
        before = vectors(engine, TEXTS)
        job = engine.submit("Once upon", n_predict=24)
        answers = [engine.embed(TEXTS, normalize=False) for _ in range(4)]
        for answer in answers:
            assert same(before, [one.vector for one in answer.result(SECONDS)])
        assert job.result(SECONDS).ids == alone


@pytest.mark.parametrize("last", [1, 2], ids=["ringline", "stock"])
def test_nobody_fetches_the_logits_of_an_embedding(decoder, endpoints, last):
    nodes = [endpoints[0], endpoints[last]]
    with engine_over(decoder, nodes) as engine:
        vectors(engine, TEXTS)
        counters = engine._groups[0]._context._remote.counters
        before = sum(traffic.bytes_in for traffic in counters.snapshot().values())
        found = vectors(engine, TEXTS)
        came = sum(traffic.bytes_in for traffic in counters.snapshot().values()) - before
        rows = sum(len(engine.model.tokenize(text)) for text in TEXTS)
    assert len(found) * SPEC.embd * 4 <= came < rows * SPEC.vocab * 4 / 10


@pytest.mark.parametrize(
    ("inputs", "what"),
    [
        (["fine", []], "input 2 is empty"),
        (
            [[5] * 513],
            "input 1 is too large: it has 513 tokens and at most 512 .*raise --embedding-tokens",
        ),
        ([[5, SPEC.vocab]], "not in the vocabulary of 2000"),
        ([[-1]], "not in the vocabulary"),
    ],
)
def test_an_input_that_cannot_be_embedded_is_named(decoder, inputs, what):
    with engine_over(decoder) as engine:
        with pytest.raises(CallerError, match=what):
            engine.embed(inputs)
        assert vectors(engine, ["still here"])


def test_an_encoder_reads_no_more_than_it_was_trained_for_and_writes_nothing(encoder):
    with engine_over(encoder, embeddings=False) as engine:
        assert (engine.embedding.n_tokens, engine.embedding.width) == (CONTEXT, EMBD)
        assert vectors(engine, [[5] * CONTEXT])
        with pytest.raises(CallerError, match="trained for no more"):
            engine.embed([[5] * (CONTEXT + 1)])
        with pytest.raises(CallerError, match="reads texts and writes none"):
            engine.submit("Once upon a time")


def test_an_encoder_is_not_taken_for_a_writer_by_generate(encoder):
    with (
        Ring() as ring,
        ring.load(encoder, n_threads=1, repack=False) as loaded,
        pytest.raises(CallerError, match="reads texts and writes none"),
    ):
        loaded.generate("Once upon a time")


@pytest.mark.parametrize("path", [Path.HUB, Path.DIRECT, Path.RENDEZVOUS])
def test_every_path_of_a_hidden_state_gives_the_same_vectors(decoder, endpoints, path):
    with engine_over(decoder) as engine:
        expected = vectors(engine, TEXTS)
    with engine_over(decoder, endpoints[:2], path=path) as engine:
        assert same(vectors(engine, TEXTS), expected)


def test_an_engine_embeds_only_if_it_was_told_to(decoder):
    with engine_over(decoder, embeddings=False) as engine:
        assert engine.embedding is None
        with pytest.raises(CallerError, match="--embeddings"):
            engine.embed(["x"])


def test_what_waits_can_be_cancelled_and_makes_room_in_the_queue(decoder):
    with engine_over(decoder, queue=2) as engine:
        long = [[5] * 512] * 16
        with held(engine):
            running = engine.embed(long)
            waiting = [engine.embed(long), engine.embed(long)]
            with pytest.raises(BusyError, match="ahead already"):
                engine.embed(long)
            assert waiting.pop().cancel()
            waiting.append(engine.embed(["x"]))
            assert not running.done()
        assert len(running.result(SECONDS)) == len(long)
        assert [len(answer.result(SECONDS)) for answer in waiting] == [len(long), 1]


def test_without_a_queue_one_request_is_taken_at_a_time(decoder):
    with engine_over(decoder, queue=0) as engine:
        with held(engine):
            running = engine.embed([[5] * 512])
            with pytest.raises(BusyError):
                engine.embed(["x"])
        running.result(SECONDS)
        assert vectors(engine, ["x"])


def test_what_is_being_computed_ends_when_nobody_wants_it_or_the_engine_closes(decoder):
    endless = [[5] * 512] * 20000
    with engine_over(decoder) as engine:
        running = engine.embed(endless)
        after = engine.embed(["x"])
        while not running.running():
            time.sleep(0.01)
        assert not running.cancel()
        with pytest.raises(EngineError, match="were cancelled"):
            running.result(SECONDS)
        assert after.result(SECONDS)
        running, waiting = engine.embed(endless), engine.embed(["x"])
    for answer in (running, waiting):
        with pytest.raises(EngineError, match="closed"):
            answer.result(0)


def test_a_lost_node_ends_embeddings_and_the_engine_by_name(decoder, patience):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        nodes = [peer.endpoint for peer in peers]
        engine = stack.enter_context(engine_over(decoder, nodes))
        assert vectors(engine, TEXTS)
        peers[1].kill()
        with pytest.raises(NetworkError, match=nodes[1]):
            engine.embed(TEXTS).result(patience(SECONDS))
        with pytest.raises(NetworkError, match=nodes[1]):
            engine.embed(TEXTS)
        with pytest.raises(NetworkError, match=nodes[1]):
            engine.submit("Once upon a time")


def test_a_closed_engine_embeds_no_more(decoder):
    with engine_over(decoder) as engine:
        pass
    with pytest.raises(EngineError, match="closed"):
        engine.embed(["x"])


def spec(model, **options):
    standard = {"parallel": 2, "n_ctx": 512, "n_threads": 1, "repack": False}
    return EngineSpec(model=str(model), **{**standard, **options})


def test_an_engines_process_embeds_as_an_engine_does(decoder):
    with engine_over(decoder) as engine:
        expected = vectors(engine, TEXTS, normalize=True)
    with EngineProcess(spec(decoder, embeddings=EmbeddingOptions())) as process:
        assert process.about.embedding == EmbedderFacts(512, SPEC.embd)
        found = process.embed(TEXTS).result(SECONDS).embeddings
        assert same(expected, [embedding.vector for embedding in found])
        with pytest.raises(CallerError, match="input 2 is empty"):
            process.embed(["fine", ()]).result(SECONDS)
        assert process.submit("Once", Request(n_predict=3)).result(SECONDS).ids


def test_an_encoder_in_a_process_is_ready_and_says_that_it_writes_nothing(encoder):
    with EngineProcess(spec(encoder)) as process:
        assert (process.about.writes, process.about.embedding) == (
            False,
            EmbedderFacts(CONTEXT, EMBD),
        )
        assert process.embed(["x"]).result(SECONDS).embeddings[0].n_tokens == 3
        with pytest.raises(CallerError, match="writes none"):
            process.submit("Once")


def test_embeddings_that_wait_in_a_process_can_be_given_up(decoder):
    with EngineProcess(spec(decoder, embeddings=EmbeddingOptions())) as process:
        long = [[5] * 512] * 32
        running, waiting = process.embed(long), process.embed([[5] * 512] * 500)
        process.cancel(waiting)
        with pytest.raises(EngineError, match="cancelled"):
            waiting.result(SECONDS)
        assert len(running.result(SECONDS).embeddings) == len(long)


def test_a_process_says_that_its_engine_has_ended_when_embeddings_find_a_lost_node(
    decoder, patience
):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        nodes = tuple(peer.endpoint for peer in peers)
        options = {"nodes": nodes, "embeddings": EmbeddingOptions()}
        process = stack.enter_context(EngineProcess(spec(decoder, **options)))
        peers[1].kill()
        with pytest.raises(NetworkError, match=nodes[1]):
            process.embed(TEXTS).result(patience(SECONDS))
        assert nodes[1] in str(process.ended.result(patience(SECONDS)))


@pytest.mark.parametrize(
    ("lengths", "runs"),
    [
        ([], []),
        ([8], [[0]]),
        ([3, 5, 1], [[0, 1], [2]]),
        ([8, 8], [[0], [1]]),
        ([1] * 7, [[0, 1, 2], [3, 4, 5], [6]]),
    ],
)
def test_texts_are_cut_into_runs_in_order_that_fit(lengths, runs):
    assert [list(run) for run in packed(lengths, n_tokens=8, n_texts=3)] == runs
