"""Each link of the chain does what libllama's own does, and a bare row is all that it needs."""

from __future__ import annotations

import numpy as np
import pytest

from ringline.errors import CallerError, LibraryError, NoTokenError
from ringline.llama.sampler import Sampler, SamplingParams
from tests.small_context import small_context


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    """A context that has decoded three tokens."""
    with small_context(tmp_path_factory.mktemp("small")) as opened:
        yield opened


def draw(context, count, **params):
    with Sampler(context.model, SamplingParams(**params)) as sampler:
        return [sampler.choose(context.logits()) for _ in range(count)]


def libllama_draws(context, links, count=12):
    """What libllama's own function draws with links in llama.cpp's order."""
    library = context._library
    chain = library.llama_sampler_chain_init(library.llama_sampler_chain_default_params())
    try:
        for link in links(library):
            library.llama_sampler_chain_add(chain, link)
        return [library.llama_sampler_sample(chain, context.handle, -1) for _ in range(count)]
    finally:
        library.llama_sampler_free(chain)


def everything(library):
    """All links of common/sampling.cpp but those that need a vocabulary."""
    yield library.llama_sampler_init_penalties(512, 64, 1.1, 0.2, 0.3)
    yield library.llama_sampler_init_top_n_sigma(1.5)
    yield library.llama_sampler_init_top_k(200)
    yield library.llama_sampler_init_typical(0.95, 1)
    yield library.llama_sampler_init_top_p(0.9, 1)
    yield library.llama_sampler_init_min_p(0.05, 1)
    yield library.llama_sampler_init_xtc(0.5, 0.004, 1, 7)
    yield library.llama_sampler_init_temp_ext(1.5, 0.5, 1.2)
    yield library.llama_sampler_init_dist(7)


EVERYTHING = {
    "repeat_penalty": 1.1,
    "frequency_penalty": 0.2,
    "presence_penalty": 0.3,
    "top_n_sigma": 1.5,
    "top_k": 200,
    "typical_p": 0.95,
    "top_p": 0.9,
    "min_p": 0.05,
    "xtc_probability": 0.5,
    "xtc_threshold": 0.004,
    "temperature": 1.5,
    "dynatemp_range": 0.5,
    "dynatemp_exponent": 1.2,
    "seed": 7,
}


def mirostat_of(version):
    def links(library):
        yield library.llama_sampler_init_temp(1.5)
        if version == 1:
            yield library.llama_sampler_init_mirostat(512, 7, 4.0, 0.3, 100)
        else:
            yield library.llama_sampler_init_mirostat_v2(7, 4.0, 0.3)

    return links


MIROSTAT = {"temperature": 1.5, "mirostat_tau": 4.0, "mirostat_eta": 0.3, "seed": 7}


@pytest.mark.parametrize(
    ("params", "links"),
    [
        (EVERYTHING, everything),
        (MIROSTAT | {"mirostat": 1, "presence_penalty": 9.0}, mirostat_of(1)),
        (MIROSTAT | {"mirostat": 2, "dry_multiplier": 9.0}, mirostat_of(2)),
        ({"temperature": 0.0}, lambda library: [library.llama_sampler_init_greedy()]),
    ],
)
def test_choices_are_those_of_libllamas_own_function(params, links, context):
    assert draw(context, 12, **params) == libllama_draws(context, links)


@pytest.mark.parametrize("name", ["top_n_sigma", "typical_p", "xtc_probability", "dynatemp_range"])
def test_each_of_these_parameters_has_a_part_in_that(name, context):
    less = {key: value for key, value in EVERYTHING.items() if key != name}
    assert draw(context, 12, **less) != draw(context, 12, **EVERYTHING)


def choices(row, count=40, *, model=None, seen=(), **params):
    """The set of tokens that come out of one row."""
    found = set()
    for seed in range(count):
        options = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed}
        with Sampler(model, SamplingParams(**options | params), n_vocab=len(row)) as sampler:
            sampler.accept_all(seen)
            found.add(sampler.choose(row))
    return found


def test_top_n_sigma_keeps_what_is_near_the_highest():
    row = np.array([10.0, 9.9, 0.0, 0.1, -0.1, 0.2], np.float32)
    assert choices(row, temperature=100.0) == set(range(6))
    assert choices(row, temperature=100.0, top_n_sigma=1.0) == {0, 1}


def test_xtc_leaves_out_all_but_the_last_of_the_likely_ones():
    row = np.log(np.array([0.4, 0.3, 0.2, 0.1], np.float32))
    assert choices(row) == {0, 1, 2, 3}
    assert choices(row, xtc_probability=1.0, xtc_threshold=0.15) == {2, 3}
    assert choices(row, xtc_probability=1.0, xtc_threshold=0.6) == {0, 1, 2, 3}


def test_typical_leaves_out_what_surprises_too_little():
    row = np.log(np.array([0.2, *[0.05] * 16], np.float32))
    assert 0 in choices(row)
    assert 0 not in choices(row, typical_p=0.2)


def test_dry_stops_a_repetition_as_far_back_as_it_looks(context):
    row = np.zeros(512, np.float32)
    row[300], row[301] = 5.0, 4.0
    seen = [298, 299, 300, 290, 291, 298, 299]
    options = {"temperature": 0, "model": context.model, "count": 1, "seen": seen}
    assert choices(row, **options) == {300}
    assert choices(row, dry_multiplier=10.0, **options) == {301}
    assert choices(row, dry_multiplier=0.1, **options) == {300}
    assert choices(row, dry_multiplier=10.0, dry_penalty_last_n=5, **options) == {300}
    assert choices(row, dry_multiplier=10.0, dry_allowed_length=3, **options) == {300}


def test_no_repetition_goes_across_a_sequence_breaker(context):
    row = np.zeros(512, np.float32)
    row[300], row[301] = 5.0, 4.0
    (star,) = context.model.tokenize("x*", add_special=False)[-1:]
    seen = [299, star, 300, 290, 299, star]
    options = {"temperature": 0, "model": context.model, "count": 1, "seen": seen}
    assert choices(row, dry_multiplier=10.0, **options) == {300}
    assert choices(row, dry_multiplier=10.0, dry_sequence_breakers=(), **options) == {301}


def test_a_forbidden_token_is_never_chosen_whatever_comes_after():
    row = np.zeros(200, np.float32)
    row[::2] = -np.inf
    for more in ({}, {"mirostat": 1}, {"mirostat": 2}, {"typical_p": 0.9}, {"top_k": 150}):
        assert all(token % 2 for token in choices(row, **more))


@pytest.mark.parametrize("options", [{}, {"temperature": 0}, {"mirostat": 1}])
def test_a_bias_that_forbids_all_is_an_error(options):
    bias = dict.fromkeys(range(8), float("-inf"))
    with (
        Sampler(None, SamplingParams(logit_bias=bias, **options), n_vocab=8) as sampler,
        pytest.raises(NoTokenError, match="the logit bias allows no token here"),
    ):
        sampler.choose(np.zeros(8, np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_no_numbers_are_refused_and_count_for_nothing(value):
    params = SamplingParams(seed=3, presence_penalty=1.0)
    rows = np.random.default_rng(0).standard_normal((5, 64), dtype=np.float32)
    with Sampler(None, params, n_vocab=64) as sampler:
        wanted = [sampler.choose(row) for row in rows]
    with Sampler(None, params, n_vocab=64) as sampler:
        found = []
        for row in rows:
            with pytest.raises(LibraryError, match="not numbers"):
                sampler.choose(np.full(64, value, np.float32))
            found.append(sampler.choose(row))
    assert found == wanted


def test_a_row_is_not_changed():
    row = np.random.default_rng(0).standard_normal(64, dtype=np.float32)
    before = row.copy()
    choices(row, logit_bias={1: 4.0}, repeat_penalty=2.0, seen=[1, 2])
    assert (row == before).all()


def test_samplers_of_several_vocabularies_take_turns():
    rows = {n: np.random.default_rng(n).standard_normal(n, dtype=np.float32) for n in (8, 64)}
    params = SamplingParams(seed=3, top_k=5)
    samplers = {n: Sampler(None, params, n_vocab=n) for n in rows}
    found = {n: [] for n in rows}
    for _ in range(5):
        for n, row in rows.items():
            found[n].append(samplers[n].choose(row))
    for n, row in rows.items():
        with Sampler(None, params, n_vocab=n) as alone:
            assert [alone.choose(row) for _ in range(5)] == found[n]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "needs the size of the vocabulary"),
        ({"n_vocab": 0}, "needs the size of the vocabulary, 1 or more, not 0"),
    ],
)
def test_a_sampler_without_a_model_is_told_how_many_tokens_there_are(options, message):
    with pytest.raises(CallerError, match=message):
        Sampler(None, SamplingParams(), **options)


def test_a_vocabulary_of_another_size_than_the_rows_is_refused(context):
    with pytest.raises(CallerError, match="vocabulary of 512 tokens has no rows of 511 logits"):
        Sampler(context.model, SamplingParams(), n_vocab=511)
    with (
        Sampler(context.model, SamplingParams()) as sampler,
        pytest.raises(CallerError, match="a row of 511 logits"),
    ):
        sampler.choose(np.zeros(511, np.float32))
