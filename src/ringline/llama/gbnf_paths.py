"""How many ways libllama has to look at before a character, in a grammar. Pure.

It follows every way to the next character: past parts that may be left out, and past all ways to
leave out what is made of such parts. The first are added, the second multiplied: `a{0,99}` of an
`a` that may be empty, three deep, is a million ways and the end of the engine. This counts them,
roughly: what stands behind a rule where it is used is not looked at.

A part has a number of ways to be empty, a number of ways to where its text begins, and the most
such ways at any place in it.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final, TypeAlias

__all__ = ["MOST_WAYS", "most_ways"]

#: more than that are not counted.
MOST_WAYS: Final = 1000
#: ways to be empty, ways to begin, the most ways inside.
_Part: TypeAlias = tuple[int, int, int]
_CHARACTER: Final[_Part] = (0, 1, 1)
_EMPTY: Final[_Part] = (1, 0, 0)
_UNKNOWN: Final[_Part] = (0, 0, 0)
#: rules know of each other after so many rounds; in a long grammar, which programs make, after few.
_ROUNDS, _FEW_ROUNDS, _LONG = 6, 2, 20_000
_TOKEN: Final = re.compile(
    r"""(?P<head>[A-Za-z0-9-]+)\s*::=
    |(?P<name>[A-Za-z0-9-]+)
    |(?P<text>"(?:\\.|[^"\\])*")
    |(?P<one>\[(?:\\.|[^\]\\])*\]|\.|!?<[^>]*>)
    |\{(?P<low>\d+)(?P<comma>,?)(?P<high>\d*)\}
    |(?P<sign>[()|?*+])
    |\#[^\n]*""",
    re.DOTALL | re.VERBOSE,
)


@lru_cache(maxsize=16)  # the same schema comes with each request of a program
def most_ways(grammar: str) -> int:
    """The most ways that there are anywhere in a grammar, counted up to MOST_WAYS and a bit."""
    rules: dict[str, _Part] = {}
    tokens = list(_TOKEN.finditer(grammar))
    most = 0
    for _ in range(_ROUNDS if len(tokens) < _LONG else _FEW_ROUNDS):
        before = dict(rules)
        _round(tokens, rules)
        most = max(part[2] for part in rules.values())
        if most > MOST_WAYS or rules == before:
            break
    return most


def _round(tokens: list[re.Match[str]], rules: dict[str, _Part]) -> None:
    """Count the ways of each rule by what is known of the others."""
    name = ""
    open_: list[list[list[_Part]]] = [[[]]]  # brackets, alternatives, parts
    for token in tokens:
        kind = token.lastgroup
        sequence = open_[-1][-1]
        if kind == "head":
            rules[name] = _either(open_[0])
            name, open_ = token["head"], [[[]]]
        elif kind == "name":
            sequence.append(rules.get(token["name"], _UNKNOWN))
        elif kind == "text":
            sequence.append(_EMPTY if token["text"] == '""' else _CHARACTER)
        elif kind == "one":
            sequence.append(_CHARACTER)
        elif token["sign"] == "(":
            open_.append([[]])
        elif token["sign"] == "|":
            open_[-1].append([])
        elif token["sign"] == ")" and len(open_) > 1:
            part = _either(open_.pop())
            open_[-1][-1].append(part)
        elif sequence and (token["sign"] in ("?", "*", "+") or token["low"]):
            sequence[-1] = _repeated(sequence[-1], *_bounds(token))
    rules[name] = _either(open_[0])


def _bounds(token: re.Match[str]) -> tuple[int, int]:
    """How often at least, and at most; 1 stands for any number, whose ways are as many."""
    if token["low"]:
        low = int(token["low"][:6])
        return low, int(token["high"][:6]) if token["high"] else max(1, low)
    return (1, 1) if token["sign"] == "+" else (0, 1)


def _either(alternatives: list[list[_Part]]) -> _Part:
    parts = [_sequence(parts) for parts in alternatives]
    empty, begin = _few(sum(part[0] for part in parts)), _few(sum(part[1] for part in parts))
    return empty, begin, max(empty, begin, *(part[2] for part in parts))


def _sequence(parts: list[_Part]) -> _Part:
    found = _EMPTY
    for part in reversed(parts):
        found = _before(part, found)
    return found


def _before(part: _Part, rest: _Part) -> _Part:
    """A part and what comes behind it."""
    empty, begin = _few(part[0] * rest[0]), _few(part[1] + part[0] * rest[1])
    return empty, begin, max(empty, begin, part[2], rest[2])


def _repeated(part: _Part, low: int, high: int) -> _Part:
    """A part as often as that: each time that is more than `low` may be left out."""
    found = _EMPTY
    for number in range(min(high, MOST_WAYS + 1), 0, -1):
        before = found
        empty, begin, most = _before(part, found)
        found = (empty + 1 if number > low else empty, begin, most)
        if found == before and number > low:  # it goes on like that
            break
    return found


def _few(number: int) -> int:
    return min(number, MOST_WAYS + 1)
