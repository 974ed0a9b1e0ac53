"""A model's metadata alone gives the model's tokenizer, without its file and its weights."""

from __future__ import annotations

import numpy as np
import pytest

import make_model
from make_model import ARCHITECTURES, ModelSpec
from ringline.errors import CallerError
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams
from ringline.llama.vocabulary import load_vocabulary, vocabulary_header

TEXTS = (
    "",
    " The quick brown fox\n\tjumps over 1234 lazy dogs; isn't it?",
    "naïve Ω 漢字 \U0001f600 <|im_start|>user",
    "def f(x):\n    return {x: 'y'}  # \x00\x7f",
)


def assert_same_vocabulary(found: Model, model: Model) -> None:
    assert found.n_vocab == model.n_vocab
    assert (found.bos, found.eos, found.eot) == (model.bos, model.eos, model.eot)
    assert found.adds_bos == model.adds_bos
    for text in TEXTS:
        for special in (False, True):
            options = {"add_special": special, "parse_special": special}
            assert found.tokenize(text, **options) == model.tokenize(text, **options)
    for token in range(0, model.n_vocab, 1 + model.n_vocab // 2000):
        assert found.piece(token, special=True) == model.piece(token, special=True)
        assert found.is_end(token) == model.is_end(token)


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_the_tokenizer_is_the_models(arch, tmp_path):
    path = make_model.make_model(tmp_path / "small.gguf", ModelSpec(arch=arch))
    header = vocabulary_header(path)
    path_is_needed_no_more = tmp_path / "moved.gguf"
    path.rename(path_is_needed_no_more)
    with load_vocabulary(header) as found, Model.load(path_is_needed_no_more) as model:
        assert_same_vocabulary(found, model)


@pytest.mark.model
def test_the_tokenizer_of_the_demo_model_too(model_path):
    header = vocabulary_header(model_path)
    assert len(header) < model_path.stat().st_size / 20
    with load_vocabulary(memoryview(header)) as found, Model.load(model_path) as model:
        assert_same_vocabulary(found, model)


def test_the_first_shard_has_it_and_the_others_are_not_looked_for(tmp_path):
    path = make_model.make_model(tmp_path / "parts.gguf", ModelSpec(split=3))
    whole = make_model.make_model(tmp_path / "whole.gguf", ModelSpec())
    assert b"split.count" in path.read_bytes()
    header = vocabulary_header(path)
    assert b"split.count" not in header
    with load_vocabulary(header) as found, Model.load(whole) as model:
        assert_same_vocabulary(found, model)


def test_it_knows_what_context_the_model_was_trained_for(tmp_path):
    path = make_model.make_model(tmp_path / "small.gguf", ModelSpec(context=1234))
    with load_vocabulary(vocabulary_header(path)) as found:
        assert found.metadata("llama.context_length") == "1234"
        sampler = Sampler(found, SamplingParams(dry_multiplier=1.0))
        assert sampler._reach == 1234


def test_a_grammar_says_the_same_with_the_vocabulary_alone(tmp_path):
    path = make_model.make_model(tmp_path / "small.gguf", ModelSpec())
    rows = np.random.default_rng(1).standard_normal((8, 512), dtype=np.float32)
    params = SamplingParams(seed=4, grammar='root ::= ("ab" | "cd")+')
    with load_vocabulary(vocabulary_header(path)) as found, Model.load(path) as model:
        ids = []
        for owner in (found, model):
            with Sampler(owner, params) as sampler:
                ids.append([sampler.choose(row) for row in rows])
        text = b"".join(map(model.piece, ids[1]))
    assert ids[0] == ids[1]
    assert set(text) <= set(b"abcd")
    assert text[:2] in (b"ab", b"cd")


@pytest.mark.parametrize(
    ("cut", "message"),
    [(10, "makes no sense"), (30, "makes no sense"), (2000, "makes no sense")],
)
def test_a_file_that_breaks_off_is_refused(cut, message, tmp_path):
    path = make_model.make_model(tmp_path / "small.gguf", ModelSpec())
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(CallerError, match=message):
        vocabulary_header(path)


def test_a_header_that_breaks_off_is_no_vocabulary(tmp_path):
    header = vocabulary_header(make_model.make_model(tmp_path / "s.gguf", ModelSpec()))
    with pytest.raises(CallerError, match="the vocabulary cannot be loaded: "):
        load_vocabulary(header[: len(header) // 2])
    with pytest.raises(CallerError, match="a vocabulary begins with b'GGUF'"):
        load_vocabulary(b"")
