"""Texts as OpenAI's API takes them: one, several, one list of tokens, or several such lists."""

from __future__ import annotations

from ringline.api.errors import bad_request

__all__ = ["Given", "Text", "texts_of"]

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
