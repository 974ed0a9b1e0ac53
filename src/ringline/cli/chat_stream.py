"""What a server with OpenAI's API says, as far as a chat reads it; other fields are passed over."""

from __future__ import annotations

import msgspec

__all__ = ["Chunk", "Models", "Usage", "error_message"]


class Delta(msgspec.Struct, frozen=True):
    """What is new in an answer."""

    content: str | None = None


class Choice(msgspec.Struct, frozen=True):
    """An answer under way."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class PromptDetails(msgspec.Struct, frozen=True):
    """Tokens of a prompt that were in a cache."""

    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens, as the server counts them."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None


class Chunk(msgspec.Struct, frozen=True):
    """One event of a stream."""

    choices: tuple[Choice, ...] = ()
    usage: Usage | None = None
    error: object = None


class Named(msgspec.Struct, frozen=True):
    """A model."""

    id: str


class Models(msgspec.Struct, frozen=True):
    """The answer of /v1/models."""

    data: tuple[Named, ...]


class _Error(msgspec.Struct, frozen=True):
    message: str


class _Refusal(msgspec.Struct, frozen=True):
    error: _Error | str


def error_message(error: object) -> str:
    """The sentence in an error of OpenAI's shape, or all of what there is."""
    try:
        found = msgspec.convert(error, _Refusal).error
    except msgspec.ValidationError:
        found = _inner(error)
    return found if isinstance(found, str) else found.message


def _inner(error: object) -> _Error | str:
    try:
        return msgspec.convert(error, _Error)
    except msgspec.ValidationError:
        return error if isinstance(error, str) else msgspec.json.encode(error).decode()
