"""A session's vocabulary: it comes once, in parts, and its connections share it."""

from __future__ import annotations

import numpy as np
import pytest

import make_model
from make_model import ModelSpec
from ringline.errors import RefusedError
from ringline.llama.model import Model
from ringline.llama.sampler import SamplingParams
from ringline.llama.vocabulary import vocabulary_header
from ringline.server import vocabulary
from ringline.wire.extension import Role
from ringline.wire.sampling import Status, VocabularyPart
from tests.sampling_node import local_session, vocabulary_session

WIDTH = 512
GREEDY = SamplingParams(temperature=0).as_json()


@pytest.fixture(scope="module")
def model_file(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec())


@pytest.fixture
def rows():
    """Logits, [1, WIDTH] f32."""
    return np.random.default_rng(3).standard_normal((1, WIDTH), dtype=np.float32)


@pytest.fixture
def session(model_file):
    """A session that has the model's vocabulary."""
    with vocabulary_session(model_file) as session:
        yield session


@pytest.fixture
def client(session):
    with session.connect() as client:
        yield client


def test_without_a_vocabulary_plain_samplers_work_and_others_say_what_is_missing(model_file, rows):
    with local_session() as session, session.connect() as client:
        client.sampler(0, GREEDY)
        client.sampler(1, SamplingParams(grammar='root ::= "a"').as_json())
        client.sampler(2, SamplingParams(dry_multiplier=1.0).as_json())
        client.keep(rows[:1])
        found = client.sample(1, [(0, 0), (0, 1), (0, 2)])
        assert found[0].token == rows[0].argmax()
        assert "a grammar needs the model's vocabulary" in found[1].reason
        assert "DRY needs the model's vocabulary" in found[2].reason


def test_all_connections_of_a_session_share_its_vocabulary_and_no_sampler(
    model_file, rows, session
):
    with session.connect() as one, session.connect(role=Role.ATTACH) as other:
        one.sampler(0, SamplingParams(temperature=0, grammar='root ::= "a"').as_json())
        other.keep(rows[:1])
        assert other.sample(1, [(0, 0)])[0].token == Status.UNKNOWN
        one.keep(rows[:1])
        (found,) = one.sample(1, [(0, 0)])
        with Model.load(model_file) as model:
            assert model.piece(found.token) == b"a"


def test_the_same_vocabulary_again_is_taken_and_another_one_refused(
    model_file, tmp_path, client, rows
):
    client.vocabulary(vocabulary_header(model_file))
    other = make_model.make_model(tmp_path / "other.gguf", ModelSpec(vocab=300))
    with pytest.raises(RefusedError, match="has the vocabulary of another model already"):
        client.vocabulary(vocabulary_header(other))
    client.ping()


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        (b"no header", "a vocabulary begins with b'GGUF'"),
        (b"GGUF", "the vocabulary cannot be loaded"),
        (b"GGUF" + bytes(100), "the vocabulary cannot be loaded"),
    ],
)
def test_what_is_no_vocabulary_is_refused_and_a_true_one_taken_afterwards(
    header, reason, model_file
):
    with local_session() as session, session.connect() as client:
        with pytest.raises(RefusedError, match=f"VOCABULARY: {reason}"):
            client.vocabulary(header)
        client.vocabulary(vocabulary_header(model_file))
        assert session.session.vocabulary.model.n_vocab == WIDTH


def test_a_vocabulary_that_is_too_large_is_refused(model_file, monkeypatch):
    monkeypatch.setattr(vocabulary, "MOST_VOCABULARY", 50_000)
    with local_session() as session, session.connect() as one, session.connect() as other:
        one.call(VocabularyPart(0, bytes(30_000)))
        with pytest.raises(RefusedError, match="more than 50000 bytes"):
            other.call(VocabularyPart(0, bytes(30_000)))
        other.call(VocabularyPart(0, bytes(20_000)))
