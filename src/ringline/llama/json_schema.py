"""JSON schemas as grammars (GBNF), by the converter that llama_cpp ships."""

from __future__ import annotations

from importlib import import_module
from typing import Final

from ringline.errors import CallerError
from ringline.llama.library import libllama

__all__ = ["MOST_SCHEMA", "schema_grammar"]

#: characters of a schema; a grammar is several times as long, and each token has to walk it.
MOST_SCHEMA: Final = 64 * 1024


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
    libllama()  # the import below loads the library: ours has to be the first
    convert = import_module("llama_cpp.llama_grammar").json_schema_to_gbnf
    try:
        return str(convert(schema))
    except RecursionError:
        raise CallerError("the JSON schema is nested too deeply") from None
    except Exception as error:  # assertions and KeyErrors, as the converter happens to fail
        reason = " ".join(str(error).split()) or type(error).__name__
        raise CallerError(f"the JSON schema cannot be used: {reason}") from None
