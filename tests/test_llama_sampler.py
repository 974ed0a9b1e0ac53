"""The chain of samplers chooses as it is told, again and again the same with the same seed."""

import gc

import numpy as np
import pytest

from ringline.errors import CallerError, LibraryError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams
from tests.small_context import small_context


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A context that has decoded three tokens."""
    with small_context(tmp_path_factory.mktemp("small")) as opened:
        yield opened


def draw(context, count=20, *, seen=(), **params):
    with Sampler(context.model, SamplingParams(**params)) as sampler:
        for token in seen:
            sampler.accept(token)
        return [sampler.choose(context.logits()) for _ in range(count)]


def test_no_temperature_takes_the_likeliest_token(context):
    likeliest = int(context.logits().argmax())
    assert draw(context, 3, temperature=0) == [likeliest] * 3
    assert draw(context, 3, temperature=-1) == [likeliest] * 3


def test_the_same_seed_draws_the_same_tokens(context):
    options = {"temperature": 2.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
    first = draw(context, seed=42, **options)
    assert draw(context, seed=42, **options) == first
    assert draw(context, seed=43, **options) != first
    assert len(set(first)) > 1


def test_without_a_seed_one_is_drawn_and_can_be_read(context):
    with (
        Sampler(context.model, SamplingParams()) as one,
        Sampler(context.model, SamplingParams()) as other,
    ):
        assert one.seed != other.seed
        again = SamplingParams(seed=one.seed)
        with Sampler(context.model, again) as repeated:
            tokens = [one.choose(context.logits()) for _ in range(5)]
            assert [repeated.choose(context.logits()) for _ in range(5)] == tokens


def test_a_greedy_sampler_has_no_seed(context):
    with Sampler(context.model, SamplingParams(temperature=0)) as sampler:
        assert sampler.seed is None


def test_one_candidate_leaves_no_choice(context):
    likeliest = int(context.logits().argmax())
    assert set(draw(context, top_k=1, temperature=5.0)) == {likeliest}
    assert set(draw(context, top_p=0.0, temperature=5.0)) == {likeliest}
    assert set(draw(context, min_p=1.0, temperature=5.0)) == {likeliest}


def test_a_bias_forbids_a_token_or_forces_it(context):
    likeliest = int(context.logits().argmax())
    forbidden = {likeliest: float("-inf")}
    assert likeliest not in draw(context, 1, temperature=0, logit_bias=forbidden)
    assert draw(context, 1, temperature=0, logit_bias={11: 1000.0}) == [11]


def test_tokens_of_the_prompt_count_for_the_penalties(context):
    likeliest = int(context.logits().argmax())
    options = {"temperature": 0, "presence_penalty": 1000.0}
    assert draw(context, 1, **options) == [likeliest]
    assert draw(context, 1, seen=[likeliest], **options) != [likeliest]


def test_a_token_that_was_chosen_counts_for_the_penalties(context):
    tokens = draw(context, 5, temperature=0, frequency_penalty=1000.0)
    assert len(set(tokens)) == 5


def test_penalties_look_back_as_far_as_they_are_told(context):
    likeliest = int(context.logits().argmax())
    options = {"temperature": 0, "presence_penalty": 1000.0, "penalty_last_n": 2}
    assert draw(context, 1, seen=[likeliest, 5], **options) != [likeliest]
    assert draw(context, 1, seen=[likeliest, 5, 6], **options) == [likeliest]


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"top_p": 1.5}, r"top_p is 1\.5: it must be from 0 to 1"),
        ({"min_p": -0.1}, r"min_p is -0\.1"),
        ({"repeat_penalty": 0.0}, "repeat_penalty is 0.0: it must be above 0"),
        ({"frequency_penalty": float("inf")}, "frequency_penalty is inf"),
        ({"penalty_last_n": -1}, "repeat_last_n is -1"),
        ({"seed": -1}, "seed is -1: it must be from 0 to 4294967294"),
        ({"seed": 2**32 - 1}, "seed is 4294967295"),
        ({"logit_bias": {1: float("inf")}}, "logit_bias must have finite numbers"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params, message):
    with pytest.raises(CallerError, match=message):
        SamplingParams(**params)


def test_a_bias_for_a_token_outside_the_vocabulary_is_refused(context):
    with pytest.raises(CallerError, match="logit_bias names token 1000000, which is not in"):
        Sampler(context.model, SamplingParams(logit_bias={10**6: 1.0}))


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        (" ", "the grammar is empty"),
        ("root ::= (", "the grammar cannot be used: failed to parse grammar"),
        ('start ::= "a"', "does not contain a 'root' symbol"),
        ('root ::= root "a"', "left recursion"),
    ],
)
def test_a_wrong_grammar_is_refused_with_the_reason(grammar, message, context):
    with pytest.raises(CallerError, match=message):
        Sampler(context.model, SamplingParams(grammar=grammar))


@pytest.mark.model
@pytest.mark.parametrize("params", [{"temperature": 0}, {"temperature": 1.5, "seed": 7}])
def test_a_grammar_is_obeyed_and_the_prompt_need_not_obey_it(params, model_path):
    with (
        Model.load(model_path) as model,
        Context(model, n_ctx=256, n_threads=2) as context,
        Sampler(model, SamplingParams(grammar='root ::= "yes" | "no"', **params)) as sampler,
    ):
        tokens = model.tokenize("Is the sky blue? Answer:")
        for token in tokens:
            sampler.accept(token)
        text = b""
        while True:
            batch = Batch(len(tokens))
            batch.add_run(tokens, context_length(context), logits_last=True)
            context.decode(batch)
            token = sampler.choose(context.logits())
            if model.is_end(token):
                break
            text += model.piece(token)
            tokens = [token]
    assert text in (b"yes", b"no")


def context_length(context):
    """Tokens that sequence 0 holds."""
    library = context._library
    return library.llama_memory_seq_pos_max(library.llama_get_memory(context.handle), 0) + 1


def test_a_grammar_that_allows_nothing_is_an_error_and_not_the_end_of_the_process(context):
    every_token = {token: float("-inf") for token in range(context.model.n_vocab)}
    params = SamplingParams(temperature=0, grammar='root ::= "a"', logit_bias=every_token)
    with (
        Sampler(context.model, params) as sampler,
        pytest.raises(CallerError, match="the grammar allows no token here"),
    ):
        sampler.choose(context.logits())


def test_a_token_that_did_not_ask_for_logits_cannot_be_followed(context):
    with (
        Sampler(context.model, SamplingParams()) as sampler,
        pytest.raises(CallerError, match="token 0 of the last batch did not ask"),
    ):
        sampler.choose(context.logits(0))


def test_logits_that_are_no_numbers_are_no_choice(context):
    broken = np.full(context.model.n_vocab, 1.0, np.float32)
    broken[3] = np.nan
    with (
        Sampler(context.model, SamplingParams(temperature=0)) as sampler,
        pytest.raises(LibraryError, match=r"not numbers \(NaN\)"),
    ):
        sampler.choose(broken)


def test_a_closed_sampler_says_so_and_closes_again(context):
    sampler = Sampler(context.model, SamplingParams())
    sampler.close()
    sampler.close()
    with pytest.raises(CallerError, match="the sampler is closed"):
        sampler.choose(context.logits())
    with pytest.raises(CallerError, match="the sampler is closed"):
        sampler.accept(1)


def test_a_sampler_that_is_forgotten_is_freed(context):
    sampler = Sampler(context.model, SamplingParams(presence_penalty=1.0))
    ends = [chain._free for chain in sampler._chains()]
    assert all(end.alive for end in ends)
    del sampler
    gc.collect()
    assert not any(end.alive for end in ends)
