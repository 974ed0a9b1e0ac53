"""Parameters of sampling are in range, and survive as text; text from strangers is not believed."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

from ringline.errors import CallerError
from ringline.llama.parameters import SamplingParams

#: none of them is a default.
CHANGED = SamplingParams(
    temperature=0.1,
    top_k=-3,
    top_p=0.123456789012345,
    min_p=0.5,
    repeat_penalty=1.25,
    frequency_penalty=-0.5,
    presence_penalty=1e-9,
    penalty_last_n=0,
    logit_bias={5: -math.inf, 0: 1.5, 70_000: -3.0},
    seed=2**32 - 2,
    grammar='root ::= "ü\\n\x07" | [^\U0001f600]',
    typical_p=0.25,
    top_n_sigma=1.5,
    xtc_probability=0.75,
    xtc_threshold=0.2,
    dry_multiplier=0.8,
    dry_base=2.0,
    dry_allowed_length=3,
    dry_penalty_last_n=1000,
    dry_sequence_breakers=("\n\n", "é"),
    mirostat=2,
    mirostat_tau=4.0,
    mirostat_eta=0.2,
    dynatemp_range=0.5,
    dynatemp_exponent=1.5,
)


def test_the_sample_of_parameters_has_no_default_left():
    plain = SamplingParams()
    for field in dataclasses.fields(SamplingParams):
        assert getattr(CHANGED, field.name) != getattr(plain, field.name), field.name


@pytest.mark.parametrize("params", [SamplingParams(), CHANGED])
def test_parameters_survive_as_text(params):
    text = params.as_json()
    assert SamplingParams.from_json(text) == params
    assert SamplingParams.from_json(memoryview(text.encode())) == params
    json.loads(text, parse_constant=pytest.fail)


def test_what_is_left_out_has_its_default():
    assert SamplingParams.from_json("{}") == SamplingParams()
    assert SamplingParams.from_json('{"top_k": 3}') == SamplingParams(top_k=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "cannot be read"),
        ("[1]", "cannot be read: Expected `object`"),
        (b"\xff\xfe", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ('{"top_k": "3"}', r"cannot be read: .*int.*top_k"),
        ('{"top_k": 1.5}', r"cannot be read: .*int.*top_k"),
        ('{"temperature": null}', "cannot be read"),
        ('{"temperature": 1e39}', r"temperature is 1e\+39: it must be a finite number"),
        ('{"grammar": 5}', "cannot be read"),
        ('{"seed": -1}', "seed is -1: it must be from 0"),
        ('{"logit_bias": {"1": 2}}', "cannot be read"),
        ('{"logit_bias": [[1]]}', "cannot be read"),
        ('{"logit_bias": [["1", 2]]}', "cannot be read"),
        ('{"logit_bias": [[1, 1e300]]}', "logit_bias must have finite numbers"),
        ('{"dry_sequence_breakers": "x"}', "cannot be read"),
        ('{"penalty_last_n": 2000000000}', "repeat_last_n is 2000000000: it must be from 0 to"),
        ('{"new_idea": 1}', "'new_idea' is no parameter of sampling"),
    ],
)
def test_text_that_makes_no_sense_is_refused(text, message):
    with pytest.raises(CallerError, match=message):
        SamplingParams.from_json(text)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_k": 2**40}, "top_k is 1099511627776: it must be a number of 32 bits"),
        ({"typical_p": 1.1}, r"typical_p is 1\.1: it must be from 0 to 1"),
        ({"top_n_sigma": math.inf}, "top_n_sigma is inf"),
        ({"xtc_probability": -0.5}, "xtc_probability is -0.5"),
        ({"xtc_threshold": 2}, "xtc_threshold is 2"),
        ({"dry_multiplier": -1.0}, "dry_multiplier is -1.0: it must be 0 or more"),
        ({"dry_base": math.nan}, "dry_base is nan"),
        ({"dry_allowed_length": -1}, "dry_allowed_length is -1"),
        ({"dry_penalty_last_n": -2}, "dry_penalty_last_n is -2: it must be from 0 to .* or -1"),
        (
            {"dry_sequence_breakers": ("",)},
            "dry_sequence_breakers has '': each must be 1 to 40 bytes",
        ),
        ({"dry_sequence_breakers": ("é" * 21,)}, "each must be 1 to 40 bytes"),
        (
            {"dry_sequence_breakers": ("x",) * 65},
            "dry_sequence_breakers has 65 texts: 64 are allowed",
        ),
        ({"mirostat": 3}, "mirostat is 3: it must be 0, 1 or 2"),
        ({"mirostat_tau": -1.0}, "mirostat_tau is -1.0"),
        ({"mirostat_eta": math.nan}, "mirostat_eta is nan"),
        ({"dynatemp_range": -0.1}, "dynatemp_range is -0.1"),
        ({"dynatemp_exponent": math.inf}, "dynatemp_exponent is inf"),
    ],
)
def test_parameters_out_of_range_are_refused(params, message):
    with pytest.raises(CallerError, match=message):
        SamplingParams(**params)


@pytest.mark.parametrize(
    ("params", "needed"),
    [
        ({}, False),
        ({"grammar": 'root ::= "a"'}, True),
        ({"dry_multiplier": 0.8}, True),
        ({"dry_multiplier": 0.8, "dry_base": 0.5}, False),
        ({"dry_multiplier": 0.8, "dry_penalty_last_n": 0}, False),
        ({"dry_multiplier": 0.8, "mirostat": 2}, False),
        ({"dry_multiplier": 0.8, "mirostat": 2, "temperature": 0.0}, True),
        ({"presence_penalty": 1.0}, False),
    ],
)
def test_only_grammars_and_dry_need_the_text_of_tokens(params, needed):
    assert SamplingParams(**params).needs_vocabulary is needed
