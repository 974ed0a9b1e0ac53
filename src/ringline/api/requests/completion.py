"""The body of /v1/completions."""

from __future__ import annotations

from ringline.api.choices import Wish
from ringline.api.errors import bad_request
from ringline.api.requests.grammar import GrammarSource
from ringline.api.requests.sampling import GenerationFields, most_logprobs
from ringline.engine.job import Request

__all__ = ["CompletionBody"]

Prompt = str | tuple[int, ...]


class CompletionBody(GenerationFields, frozen=True, kw_only=True):
    """The fields; what is not supported is refused where it would change the answer."""

    prompt: str | list[str | int | list[int]]
    logprobs: int | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None

    def prompts(self) -> list[Prompt]:
        """The prompts: one text, several, one list of tokens, or several.

        Raises:
            ApiError: there is none, or a list mixes tokens with texts.
        """
        if isinstance(self.prompt, str):
            return [self.prompt]
        entries, tokens = [], []
        for entry in self.prompt:
            if isinstance(entry, int):
                tokens.append(entry)
            else:
                entries.append(entry if isinstance(entry, str) else tuple(entry))
        if bool(entries) == bool(tokens):
            raise bad_request(
                "prompt must be a text, a list of texts, a list of tokens or a list of such lists",
                "prompt",
            )
        return entries or [tuple(tokens)]

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

    def wishes(self, n_ctx: int, grammar: str | None) -> list[Wish]:
        """What the engine is asked: the choices of the first prompt, then those of the next one.

        Args:
            n_ctx: tokens of context of a request.
            grammar: that all texts keep to.

        Raises:
            ApiError, CallerError: which field is wrong.
        """
        self.check()
        n_top = most_logprobs(self.logprobs, "logprobs")
        return [
            Wish(
                prompt,
                Request(
                    self.limit(),
                    self.sampling(n_ctx, grammar, choice=choice),
                    self.stops,
                    n_top,
                ),
            )
            for prompt in self.prompts()
            for choice in range(self.n_choices)
        ]
