"""The body of /completion, llama.cpp's own way to continue a text."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.api.choices import Wish
from ringline.api.requests.grammar import GrammarSource
from ringline.api.requests.sampling import GenerationFields, most_logprobs
from ringline.api.requests.texts import Given, Text, text_wishes, texts_of

__all__ = ["NativeBody"]


class NativeBody(GenerationFields, frozen=True, kw_only=True):
    """The fields: those of every request, and llama.cpp's own that mean something here."""

    prompt: Given
    n_probs: int | None = None
    return_tokens: bool | None = None

    @property
    def n_top(self) -> int | None:
        """How many of the likeliest tokens are named with each; None: no probabilities.

        Raises:
            ApiError: too many.
        """
        return most_logprobs(self.n_probs, "n_probs") or None

    def prompts(self) -> list[Text]:
        """The prompts.

        Raises:
            ApiError: there is none, or a list mixes tokens with texts.
        """
        return texts_of(self.prompt, "prompt")

    def grammar_source(self) -> GrammarSource | None:
        """The grammar that is wanted, or None."""
        return GrammarSource.of(grammar=self.grammar, schema=self.json_schema)

    def wishes(self, n_ctx: int, grammar: str | None, ends: Sequence[int] = ()) -> list[Wish]:
        """What the engine is asked: the choices of the first prompt, then those of the next one.

        Args:
            n_ctx: tokens of context of a request.
            grammar: that all texts keep to.
            ends: tokens that end a text.

        Raises:
            ApiError, CallerError: which field is wrong.
        """
        return text_wishes(
            self, self.prompts(), self.n_top, n_ctx=n_ctx, grammar=grammar, ends=ends
        )
