"""Texts as OpenAI's API takes them: one, several, one list of tokens, or several such lists."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.api.choices import Wish
from ringline.api.errors import bad_request
from ringline.api.requests.sampling import GenerationFields
from ringline.engine.job import Request

__all__ = ["Given", "Text", "text_wishes", "texts_of"]

#: a text, or tokens.
Text = str | tuple[int, ...]
#: what a field may hold.
Given = str | list[str | int | list[int]]


def texts_of(given: Given, field: str) -> list[Text]:
    """The texts of a field.

    Raises:
        ApiError: there is none, or a list mixes tokens with texts.
    """
    if isinstance(given, str):
        return [given]
    texts: list[Text] = []
    tokens: list[int] = []
    for entry in given:
        if isinstance(entry, int):
            tokens.append(entry)
        else:
            texts.append(entry if isinstance(entry, str) else tuple(entry))
    if bool(texts) == bool(tokens):
        raise bad_request(
            f"{field} must be a text, a list of texts, a list of tokens or a list of such lists",
            field,
        )
    return texts or [tuple(tokens)]


def text_wishes(
    fields: GenerationFields,
    prompts: Sequence[Text],
    n_top: int | None,
    *,
    n_ctx: int,
    grammar: str | None,
    ends: Sequence[int],
) -> list[Wish]:
    """What the engine is asked: the choices of the first prompt, then those of the next one.

    Args:
        fields: of the request.
        prompts: what is continued.
        n_top: how many of the likeliest tokens are named with each; None: no logprobs.
        n_ctx: tokens of context of a request.
        grammar: that all texts keep to.
        ends: tokens that end a text.

    Raises:
        ApiError, CallerError: which field is wrong.
    """
    return [
        Wish(
            prompt,
            Request(
                fields.limit(),
                fields.sampling(n_ctx, grammar, choice=choice, ends=ends),
                fields.stops,
                n_top,
            ),
        )
        for prompt in prompts
        for choice in range(fields.n_choices)
    ]
