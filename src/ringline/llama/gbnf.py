"""What libllama's parser of grammars does not check itself, because it costs the process. Pure."""

from __future__ import annotations

import re
from typing import Final

from ringline.errors import CallerError
from ringline.llama.gbnf_paths import MOST_WAYS, most_ways

__all__ = ["check_grammar"]

#: its parser calls itself for each bracket: with some ten thousand the stack is full.
_DEEPEST: Final = 1000
#: each token that may come is compared with each character of a class.
_LONGEST_CLASS: Final = 1024
#: what may hold brackets that open nothing: literals, classes of characters, comments.
_OTHER: Final = re.compile(r'"(?:\\.|[^"\\])*"|\[(?:\\.|[^\]\\])*\]|#[^\n]*', re.DOTALL)


def check_grammar(text: str) -> None:
    """Refuse a grammar that would end the process.

    Args:
        text: in GBNF.

    Raises:
        CallerError: it is empty, its brackets are nested too deeply, a class is too long, or there
            are too many ways through it, see gbnf_paths.py.
    """
    if not text.strip():
        raise CallerError("the grammar is empty")
    for other in _OTHER.finditer(text):
        if other[0].startswith("[") and len(other[0]) > _LONGEST_CLASS:
            raise CallerError(
                f"the grammar cannot be used: a class in it has {len(other[0])} characters, "
                f"{_LONGEST_CLASS} are allowed"
            )
    depth = 0
    for character in _OTHER.sub("", text):
        if character == "(":
            depth += 1
            if depth > _DEEPEST:
                raise CallerError(
                    f"the grammar cannot be used: more than {_DEEPEST} brackets are nested in it"
                )
        elif character == ")":
            depth -= 1
    if most_ways(text) > MOST_WAYS:
        raise CallerError(
            f"the grammar cannot be used: there are more than {MOST_WAYS} ways to a next character "
            "in it, make fewer of its parts optional"
        )
