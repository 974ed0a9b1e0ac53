"""Schemas that would take all memory, or make no sense, are refused with a sentence."""

from __future__ import annotations

import json

import pytest

from ringline.errors import CallerError
from ringline.llama.json_schema import MOST_REPEATED, schema_grammar


def grammar(schema):
    return schema_grammar(json.dumps(schema))


def item(**facts):
    """A schema with a property of these facts."""
    return {"type": "object", "properties": {"a": facts}}


@pytest.mark.parametrize(
    "facts",
    [
        {"type": "string", "maxLength": MOST_REPEATED},
        {"type": "array", "items": {"type": "integer"}, "maxItems": MOST_REPEATED},
        {"type": "string", "pattern": "^a{3,1000}$"},
        # The name of a property is no keyword.
        {"type": "object", "properties": {"maxLength": {"type": "integer"}}},
    ],
)
def test_what_is_within_bounds_becomes_a_grammar(facts):
    assert "root ::=" in grammar(item(**facts))


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        # This one took 8 GB before it was looked at.
        ({"type": "string", "maxLength": 10**9}, "maxLength is 1000000000, and 1000 is the most"),
        ({"type": "string", "minLength": 1001}, "minLength is 1001"),
        ({"type": "array", "items": {}, "maxItems": 10**12}, "maxItems is 1000000000000"),
        ({"type": "string", "pattern": "^a{1,100000}$"}, "a repetition in a pattern is 100000"),
        ({"type": "string", "pattern": "^a{" + "9" * 5000 + "}$"}, "a repetition in a pattern"),
        ({"type": "string", "maxLength": "10"}, "maxLength is '10' and must be a whole number"),
        ({"type": "string", "maxLength": -1}, "maxLength is -1 and must be"),
        ({"type": "array", "items": {}, "minItems": True}, "minItems is True and must be"),
        ({"type": "object", "properties": 5}, "a part of it has a wrong type"),
        ({"$ref": "#/definitions/none"}, "the JSON schema cannot be used"),
        (
            {"type": "array", "items": {"enum": ["x" * 2000]}, "minItems": 1000, "title": "x"},
            None,
        ),
    ],
)
def test_what_is_beyond_them_is_refused_with_a_reason(facts, told):
    if told is None:
        assert "root ::=" in grammar(item(**facts))  # a rule is repeated by its name alone
        return
    with pytest.raises(CallerError, match="the JSON schema cannot be used: ") as caught:
        grammar(item(**facts))
    assert told in str(caught.value)


@pytest.mark.parametrize("schema", [5, True, [], "x", None])
def test_only_an_object_is_a_schema(schema):
    with pytest.raises(CallerError, match="it must be an object"):
        grammar(schema)


def test_a_grammar_that_gets_too_long_is_refused():
    long = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 1000}
    names = {f"{number}{'n' * 300}": long for number in range(10)}
    with pytest.raises(CallerError, match=r"becomes a grammar of [0-9]+ characters"):
        grammar({"type": "object", "properties": names})
