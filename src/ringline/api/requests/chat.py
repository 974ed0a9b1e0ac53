"""The body of /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ringline.api.choices import Wish, answered
from ringline.api.errors import bad_request, error_of
from ringline.api.requests.grammar import GrammarSource, ResponseFormat
from ringline.api.requests.messages import Message, template_messages
from ringline.api.requests.sampling import NOTHING, GenerationFields, most_logprobs
from ringline.api.requests.tools import Tool, ToolChoice, ToolUse
from ringline.engine.job import Request
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.questions import AskPrompt, Said
from ringline.errors import CallerError

__all__ = ["ChatBody"]


class ChatBody(GenerationFields, frozen=True, kw_only=True):
    """The fields."""

    messages: list[Message]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: str | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, object] | None = None
    functions: msgspec.Raw = NOTHING
    modalities: list[str] | None = None

    @property
    def n_top(self) -> int | None:
        """How many of the likeliest tokens are named with each; None: no logprobs.

        Raises:
            ApiError: too many, or they are wanted without logprobs.
        """
        if not self.logprobs:
            if self.top_logprobs:
                raise bad_request("top_logprobs needs logprobs: true", "top_logprobs")
            return None
        return most_logprobs(self.top_logprobs or 0, "top_logprobs")

    def check(self) -> None:
        """Refuse what is not supported.

        Raises:
            ApiError: which field it is.
        """
        if bytes(self.functions) != b"null":
            raise bad_request("functions is not supported: give tools", "functions")
        if self.modalities and self.modalities != ["text"]:
            raise bad_request("modalities: only text is supported", "modalities")

    def tool_use(self, template: str | None) -> ToolUse | None:
        """How tools are used in this conversation; None: they are not.

        Raises:
            ApiError: a tool cannot be, or tool_choice names none of them.
        """
        use = ToolUse.of(self.tools or [], self.tool_choice, template)
        if use and use.forced and (self.grammar or self._formats):
            raise bad_request(
                "tool_choice and a grammar or a response_format exclude each other", "tool_choice"
            )
        return use

    @property
    def _formats(self) -> bool:
        schema = bytes(self.json_schema) != b"null"
        return schema or (self.response_format or ResponseFormat("text")).type != "text"

    async def prompt(self, engine: EngineProcess, use: ToolUse | None) -> str:
        """The conversation as the model's template writes it.

        Raises:
            ApiError: the template refuses it; says why.
        """
        messages = template_messages(self.messages)
        variables: dict[str, object] = {**(self.chat_template_kwargs or {})}
        if use is not None:
            messages = use.conversation(messages)
            variables |= use.variables()
        text = msgspec.json.encode({**variables, "messages": messages}).decode()
        try:
            prompt = (await answered(engine.ask(lambda n: AskPrompt(n, text), Said))).text
        except CallerError as error:
            raise bad_request(str(error_of(error)), "messages") from None
        return prompt + (use.opening if use else "")

    def grammar_source(self, use: ToolUse | None) -> GrammarSource | None:
        """The grammar that the answer keeps to, or None.

        Raises:
            ApiError: more than one is wanted, or one makes no sense.
        """
        source = GrammarSource.of(
            grammar=self.grammar, schema=self.json_schema, response_format=self.response_format
        )
        return use.grammar_source() if use is not None and use.forced else source

    def wishes(
        self,
        prompt: str,
        n_ctx: int,
        grammar: str | None,
        *,
        chatml: bool,
        special: bool = False,
        ends: Sequence[int] = (),
    ) -> list[Wish]:
        """What the engine is asked: one job for each choice.

        Args:
            prompt: the conversation as text.
            n_ctx: tokens of context of a request.
            grammar: that the answers keep to.
            chatml: whether the template is ChatML for want of one: the model has no token that
                ends its turn then, so that the words for it do.
            special: whether the texts show control tokens.
            ends: tokens that end a text.

        Raises:
            ApiError, CallerError: which field is wrong.
        """
        self.check()
        stops = (*self.stops, "<|im_end|>") if chatml else self.stops
        return [
            Wish(
                prompt,
                Request(
                    self.limit(max_completion_tokens=self.max_completion_tokens),
                    self.sampling(n_ctx, grammar, choice=choice, ends=ends),
                    stops,
                    self.n_top,
                    special,
                ),
            )
            for choice in range(self.n_choices)
        ]
