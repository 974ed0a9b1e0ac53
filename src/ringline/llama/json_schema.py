"""JSON schemas as grammars (GBNF), by the converter that llama_cpp ships.

It writes out each repetition as often as it may come, so that a number in a schema of a line could
take all memory: numbers and lengths are looked at before and after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Final

from ringline.errors import CallerError
from ringline.llama.library import libllama

__all__ = ["MOST_REPEATED", "MOST_SCHEMA", "schema_grammar"]

#: characters of a schema; a grammar is several times as long, and each token has to walk it.
MOST_SCHEMA: Final = 64 * 1024
#: how often something may be repeated: each time is a bracket in the grammar, see gbnf.py.
MOST_REPEATED: Final = 1000
_MOST_GRAMMAR: Final = 1024 * 1024
_COUNTS: Final = ("minLength", "maxLength", "minItems", "maxItems")
#: {3}, {3,} and {3,5} in a pattern.
_TIMES: Final = re.compile(r"\{(\d*),?(\d*)\}")


def schema_grammar(schema: str) -> str:
    """Turn a schema into a grammar whose start symbol is `root`.

    Args:
        schema: a JSON object.

    Raises:
        CallerError: it is none, uses what the converter does not know, or is too large.
    """
    if len(schema) > MOST_SCHEMA:
        raise CallerError(
            f"the JSON schema has {len(schema)} characters: {MOST_SCHEMA} are allowed"
        )
    try:
        value = json.loads(schema)
        if not isinstance(value, dict):
            raise CallerError("the JSON schema cannot be used: it must be an object")
        for name, count in _repetitions(value):
            if count > MOST_REPEATED:
                raise CallerError(
                    f"the JSON schema cannot be used: {name} is {count}, and {MOST_REPEATED} is "
                    "the most"
                )
        grammar = _converted(schema)
    except RecursionError:
        raise CallerError("the JSON schema is nested too deeply, or has too many parts") from None
    if len(grammar) > _MOST_GRAMMAR:
        raise CallerError(
            f"the JSON schema becomes a grammar of {len(grammar)} characters: {_MOST_GRAMMAR} are "
            "allowed"
        )
    return grammar


def _converted(schema: str) -> str:
    libllama()  # the import below loads the library: ours has to be the first
    convert = import_module("llama_cpp.llama_grammar").json_schema_to_gbnf
    try:
        return str(convert(schema))
    except RecursionError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        # The converter does not look at what it is given before it uses it.
        told = f"a part of it has a wrong type, or refers to what is not there ({_reason(error)})"
        raise CallerError(f"the JSON schema cannot be used: {told}") from None
    except Exception as error:  # assertions, as the converter happens to fail
        raise CallerError(f"the JSON schema cannot be used: {_reason(error)}") from None


def _repetitions(value: object) -> Iterator[tuple[str, int]]:
    """All numbers of times in a schema, and what they are called.

    Raises:
        CallerError: one is no whole number.
    """
    if isinstance(value, dict):
        for name, member in value.items():
            if name in _COUNTS and not isinstance(member, dict):
                yield name, _count(name, member)
            elif name == "pattern" and isinstance(member, str):
                times = (number for found in _TIMES.findall(member) for number in found)
                yield from (("a repetition in a pattern", int(n[:9])) for n in times if n)
            else:
                yield from _repetitions(member)
    elif isinstance(value, list):
        for member in value:
            yield from _repetitions(member)


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise CallerError(
            f"the JSON schema cannot be used: {name} is {value!r} and must be a whole number"
        )
    return value


def _reason(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
