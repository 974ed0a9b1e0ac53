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


OPTIONAL = 'c ::= "x"?\nb ::= c{0,1000}\na ::= b{0,1000}\n'


@pytest.mark.parametrize(
    "text",
    [
        # libllama made no sampler of this one in half a minute.
        "root ::= a{0,1000}\n" + OPTIONAL,
        'root ::= (("a"?){0,40}){0,40}',
        "root ::= " + '"a"? ' * 1001,
        'root ::= "(" [a-z] ' + '"a"? ' * 1001 + '")"',
        'root ::= "b" a "c"\n' + OPTIONAL,
        "root ::= " + "(" * 500 + '"a"?' + "){0,2}" * 500,
    ],
)
def test_too_many_ways_to_a_character_are_refused(text):
    with pytest.raises(CallerError, match="more than 1000 ways to a next character"):
        check_grammar(text)


@pytest.mark.parametrize(
    "text",
    [
        'root ::= (("a"{2000}){2000})',
        'root ::= "a"* ("b"? "c"+)* [^"]{0,2000}',
        "root ::= " + '"a"? ' * 900,
        'root ::= "a" root | "b"',
        'root ::= "x" ' + "(c " * 1000 + ")?" * 1000 + "\nc ::= [a-z]",
        'root ::= a | b\na ::= "a" b?\nb ::= "b" a?',
        'root ::= <[5]>* # "a"? ' + '"a"? ' * 2000,
    ],
)
def test_few_ways_to_a_character_may_be_used(text):
    check_grammar(text)


def test_a_long_class_is_refused():
    check_grammar("root ::= [" + "a" * 1000 + "]+")
    with pytest.raises(CallerError, match="a class in it has 60002 characters, 1024 are allowed"):
        check_grammar("root ::= [" + "a" * 60_000 + "]+")


@pytest.mark.parametrize("text", ["", " \n"])
def test_nothing_is_no_grammar(text):
    with pytest.raises(CallerError, match="the grammar is empty"):
        check_grammar(text)
