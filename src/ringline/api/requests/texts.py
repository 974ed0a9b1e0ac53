"""Texts as OpenAI's API takes them: one, several, one list of tokens, or several such lists.

In the place of a text there may be one of llama.cpp's objects that stand for one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ringline.api.choices import Wish
from ringline.api.errors import bad_request
from ringline.api.requests.messages import Part
from ringline.api.requests.sampling import NOTHING, GenerationFields
from ringline.engine.job import Request

__all__ = ["Given", "Text", "text_wishes", "texts_of"]

#: a text, or tokens.
Text = str | tuple[int, ...]


class TextObject(msgspec.Struct, frozen=True):
    """{"prompt_string": text}, or {"content": parts}, whose texts are joined."""

    prompt_string: str | None = None
    content: list[Part] | None = None
    multimodal_data: msgspec.Raw = NOTHING

    def text(self, field: str) -> str:
        """The text that it stands for.

        Raises:
            ApiError: none, or something else than text.
        """
        parts = self.content or []
        if bytes(self.multimodal_data) != b"null" or any(part.type != "text" for part in parts):
            raise bad_request(
                f"{field} has something else than text: only that is supported", field
            )
        if (self.prompt_string is None) == (self.content is None):
            raise bad_request(f"an object in {field} must have prompt_string, or content", field)
        texts = [part.text or "" for part in parts]
        return "".join(texts) if self.prompt_string is None else self.prompt_string


#: what a field may hold.
Given = str | TextObject | list[str | int | list[int] | TextObject]


def texts_of(given: Given, field: str) -> list[Text]:
    """The texts of a field.

    Raises:
        ApiError: there is none, or a list mixes tokens with texts.
    """
    if isinstance(given, str | TextObject):
        given = [given]
    texts: list[Text] = []
    tokens: list[int] = []
    for entry in given:
        match entry:
            case int():
                tokens.append(entry)
            case TextObject():
                texts.append(entry.text(field))
            case str():
                texts.append(entry)
            case _:
                texts.append(tuple(entry))
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
