"""Tools: what the model may call, how its template is told of them, how a call is made certain.

A template that knows tools gets them as they are. For one that does not, they are described in the
system message, in the words of the Hermes format, which most models have seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import msgspec

from ringline.api.errors import bad_request
from ringline.api.requests.grammar import GrammarSource

__all__ = ["Tool", "ToolChoice", "ToolFormat", "ToolUse"]

_DESCRIPTION: Final = (
    "You may call one or more functions to assist with the user query.\n\n"
    "You are provided with function signatures within <tools></tools> XML tags:\n<tools>\n"
    "{tools}\n</tools>\n\n"
    "For each function call, return a json object with function name and arguments within "
    "<tool_call></tool_call> XML tags:\n<tool_call>\n"
    '{{"name": <function-name>, "arguments": <args-json-object>}}\n</tool_call>'
)
_MOST_TOOLS: Final = 128


class ToolFormat(StrEnum):
    """How a model writes a call."""

    #: <tool_call>{"name": ..., "arguments": ...}</tool_call>: Hermes, Qwen.
    HERMES = "hermes"
    #: {"name": ..., "parameters": ...} as the whole answer: Llama 3.
    LLAMA3 = "llama3"
    #: [TOOL_CALLS] and a list of objects, or a name and an object. The marks are control tokens.
    MISTRAL = "mistral"

    @classmethod
    def of(cls, template: str | None) -> ToolFormat:
        """What a chat template teaches; Hermes where it teaches nothing that we know."""
        known = template or ""
        if "[TOOL_CALLS]" in known:
            return cls.MISTRAL
        if "<tool_call>" not in known and ("<|python_tag|>" in known or '"parameters"' in known):
            return cls.LLAMA3
        return cls.HERMES

    @property
    def arguments(self) -> str:
        """The member of a call that has the arguments."""
        return "parameters" if self is ToolFormat.LLAMA3 else "arguments"


class Function(msgspec.Struct, frozen=True, omit_defaults=True):
    """A function; `parameters` is the schema of an object."""

    name: str
    description: str | None = None
    parameters: dict[str, object] | None = None


class Tool(msgspec.Struct, frozen=True):
    """A tool; there are only functions."""

    function: Function
    type: str = "function"


class NamedFunction(msgspec.Struct, frozen=True):
    """The function that has to be called."""

    name: str


class ToolChoice(msgspec.Struct, frozen=True):
    """tool_choice with a name."""

    function: NamedFunction
    type: str = "function"


@dataclass(frozen=True, slots=True)
class ToolUse:
    """How tools are used in one conversation.

    Attributes:
        tools: that may be called.
        format: how the model writes a call.
        forced: whether there has to be a call; then the answer is that call and nothing else.
        native: whether the template knows tools.
    """

    tools: tuple[Tool, ...]
    format: ToolFormat
    forced: bool
    native: bool

    @classmethod
    def of(
        cls, tools: list[Tool], choice: str | ToolChoice | None, template: str | None
    ) -> ToolUse | None:
        """What a request asks for; None: no tools are used.

        Args:
            tools: the field `tools`.
            choice: the field `tool_choice`.
            template: the model's chat template.

        Raises:
            ApiError: which field is wrong.
        """
        _check_tools(tools)
        named = choice.function.name if isinstance(choice, ToolChoice) else None
        if isinstance(choice, str) and choice not in ("none", "auto", "required"):
            raise bad_request(
                f"tool_choice is {choice!r}: it must be none, auto, required or a function",
                "tool_choice",
            )
        if named is not None or choice == "required":
            tools = [tool for tool in tools if named in (None, tool.function.name)]
            if not tools:
                raise bad_request(
                    "tool_choice wants a tool that tools does not have", "tool_choice"
                )
        if not tools or choice == "none":
            return None
        native = template is not None and "tools" in template
        forced = named is not None or choice == "required"
        return cls(tuple(tools), ToolFormat.of(template), forced, native)

    @property
    def functions(self) -> dict[str, dict[str, object] | None]:
        """The functions' names, and the schemas of their arguments."""
        return {tool.function.name: tool.function.parameters for tool in self.tools}

    @property
    def marked(self) -> bool:
        """Whether a call is seen only where the text shows control tokens."""
        return self.format is ToolFormat.MISTRAL

    @property
    def opening(self) -> str:
        """What is written for the model where it has to call: the mark of a call."""
        return "<tool_call>\n" if self.forced and self.format is ToolFormat.HERMES else ""

    def variables(self) -> dict[str, object]:
        """What the template is told beside the messages."""
        return {"tools": self.tools} if self.native else {}

    def conversation(self, messages: list[dict[str, object]]) -> list[dict[str, object]]:
        """The messages; where the template knows no tools, these and their calls are text."""
        if self.native:
            return messages
        shown = [_written_out(message) for message in messages]
        lines = [msgspec.json.encode(tool).decode() for tool in self.tools]
        text = _DESCRIPTION.format(tools="\n".join(lines))
        if shown[0]["role"] == "system":
            text = f"{shown.pop(0)['content']}\n\n{text}"
        return [{"role": "system", "content": text}, *shown]

    def grammar_source(self) -> GrammarSource:
        """The grammar of one call of one of the tools, as the model writes it without marks."""
        calls = [
            {
                "type": "object",
                "properties": {
                    "name": {"const": tool.function.name},
                    self.format.arguments: tool.function.parameters or {"type": "object"},
                },
                "required": ["name", self.format.arguments],
            }
            for tool in self.tools
        ]
        schema = calls[0] if len(calls) == 1 else {"anyOf": calls}
        return GrammarSource(None, msgspec.json.encode(schema).decode(), "tools")


def _check_tools(tools: list[Tool]) -> None:
    if len(tools) > _MOST_TOOLS:
        raise bad_request(f"{len(tools)} tools are too many: {_MOST_TOOLS} are allowed", "tools")
    for index, tool in enumerate(tools):
        if tool.type != "function" or not tool.function.name:
            raise bad_request(f"tools[{index}] is no function with a name", f"tools[{index}]")


def _written_out(message: dict[str, object]) -> dict[str, object]:
    """A message whose calls and results are text."""
    calls = message.get("tool_calls")
    if isinstance(calls, list):
        lines = [str(message["content"])] if message["content"] else []
        for call in calls:
            text = msgspec.json.encode(call["function"]).decode()
            lines.append(f"<tool_call>\n{text}\n</tool_call>")
        return {"role": "assistant", "content": "\n".join(lines)}
    if message["role"] == "tool":
        text = f"<tool_response>\n{message['content']}\n</tool_response>"
        return {"role": "user", "content": text}
    return message
