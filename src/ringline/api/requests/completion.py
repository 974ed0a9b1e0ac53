"""The body of /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from ringline.api.choices import Wish
from ringline.api.errors import bad_request
from ringline.api.requests.grammar import GrammarSource
from ringline.api.requests.sampling import GenerationFields, most_logprobs
from ringline.api.requests.texts import Given, Text, text_wishes, texts_of

__all__ = ["CompletionBody"]


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """The fields; what is not supported is refused where it would change the answer."""

    prompt: Given
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def prompts(self) -> list[Text]:
        """The prompts.

        Raises:
            ApiError: there is none, or a list mixes tokens with texts.
        """
        return texts_of(self.prompt, "prompt")

    def check(self) -> None:
        """Refuse what is not supported.

        Raises:
            ApiError: which field it is.
        """
        if self.echo:
            raise bad_request("echo is not supported: the text has no prompt in front", "echo")
        if self.suffix:
            raise bad_request("suffix is not supported", "suffix")
        if self.best_of is not None and self.best_of > self.n_choices:
            raise bad_request("best_of is not supported: ask for n choices", "best_of")

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
        self.check()
        n_top = most_logprobs(self.logprobs, "logprobs")
        return text_wishes(self, self.prompts(), n_top, n_ctx=n_ctx, grammar=grammar, ends=ends)
