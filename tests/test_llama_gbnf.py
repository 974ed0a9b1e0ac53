"""Grammars that would end libllama's process are refused before it sees them. Pure."""

import pytest

from ringline.errors import CallerError
from ringline.llama.gbnf import check_grammar


@pytest.mark.parametrize(
    "text",
    [
        'root ::= "a"',
        "root ::= " + "(" * 1000 + '"a"' + ")" * 1000,
        "root ::= " + '"("' * 5000,
        "root ::= " + r'"\"("' * 5000,
        "root ::= " + r"[(\](]" * 5000,
        'root ::= "a" # ' + "(" * 5000,
        "root ::= " + '("a")' * 5000,
    ],
)
def test_what_is_nested_a_little_may_be_used(text):
    check_grammar(text)


@pytest.mark.parametrize("text", ["root ::= " + "(" * 1001, "root ::= " + '("("' * 1001])
def test_what_is_nested_deeply_is_refused(text):
    with pytest.raises(CallerError, match="more than 1000 brackets are nested"):
        check_grammar(text)


@pytest.mark.parametrize("text", ["", " \n"])
def test_nothing_is_no_grammar(text):
    with pytest.raises(CallerError, match="the grammar is empty"):
        check_grammar(text)
