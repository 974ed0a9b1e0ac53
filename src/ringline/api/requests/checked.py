"""Errors of fields, with the name of the field in `param`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ringline.api.choices import Wish
from ringline.api.errors import bad_request, error_of
from ringline.api.requests.grammar import GrammarSource
from ringline.api.requests.sampling import GenerationFields
from ringline.errors import CallerError

__all__ = ["checked_wishes", "fields_of"]


def fields_of(prompt: str, grammar: GrammarSource | None) -> Mapping[str, str]:
    """How the engine's sentences about a request begin, and the fields that they are about.

    Args:
        prompt: the field that the prompt is made of.
        grammar: what the texts keep to, or None.
    """
    fields = {name: name for name in GenerationFields.__struct_fields__}
    param = grammar.param if grammar else "grammar"
    # Only the tokens of a prompt can still be too large a number: the other fields have limits.
    about = {"the prompt": prompt, "token": prompt, "a number": prompt, "the grammar": param}
    return {**fields, **about}


def checked_wishes(
    make: Callable[[], Sequence[Wish]], *, fields: Mapping[str, str], count: int, room: int
) -> Sequence[Wish]:
    """Make wishes; a value that cannot be is told with its field.

    Args:
        make: makes them.
        fields: see `fields_of`.
        count: how many there will be.
        room: how many requests the server takes at once; more could never be taken.

    Raises:
        ApiError: which field it is, or that there are too many.
    """
    if count > room:
        raise bad_request(
            f"the request wants {count} texts and this server takes {room} at once: ask for fewer"
        )
    try:
        return make()
    except CallerError as error:
        raise error_of(error, fields=fields) from None
