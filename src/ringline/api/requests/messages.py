"""Messages of a conversation: read strictly, and handed to the template as it wants them."""

from __future__ import annotations

from typing import Final

import msgspec

from ringline.api.errors import bad_request

__all__ = ["FunctionCall", "Message", "Part", "ToolCall", "template_messages"]

_ROLES: Final = ("system", "user", "assistant", "tool")
#: OpenAI's newer name of a role, which no template knows.
_ALSO: Final = {"developer": "system"}


class Part(msgspec.Struct, frozen=True):
    """A part of a message's content."""

    type: str
    text: str | None = None


class FunctionCall(msgspec.Struct, frozen=True):
    """What a tool was called with; the arguments are JSON in a string."""

    name: str
    arguments: str | dict[str, object] = "{}"


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call that the assistant made."""

    function: FunctionCall
    id: str | None = None
    type: str = "function"


class Message(msgspec.Struct, frozen=True):
    """One turn."""

    role: str
    content: str | list[Part] | None = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None

    def text(self, place: str) -> str:
        """The content as text; parts are joined with line feeds.

        Raises:
            ApiError: a part is no text, or there is no content where there must be some.
        """
        if self.content is None:
            if self.role == "assistant":
                return ""
            raise bad_request(f"{place} has no content", f"{place}.content")
        if isinstance(self.content, str):
            return self.content
        for part in self.content:
            if part.type != "text" or part.text is None:
                raise bad_request(
                    f"{place}.content has a part of type {part.type!r}: only text is supported",
                    f"{place}.content",
                )
        return "\n".join(part.text or "" for part in self.content)


def template_messages(messages: list[Message]) -> list[dict[str, object]]:
    """The messages as chat templates want them: arguments as objects, contents as text.

    Raises:
        ApiError: there are none, or one cannot be.
    """
    if not messages:
        raise bad_request("messages is empty: there must be one at least", "messages")
    return [_shown(message, f"messages[{index}]") for index, message in enumerate(messages)]


def _shown(message: Message, place: str) -> dict[str, object]:
    role = _ALSO.get(message.role, message.role)
    if role not in _ROLES:
        raise bad_request(
            f"{place}.role is {message.role!r}: it must be one of {', '.join(_ROLES)}",
            f"{place}.role",
        )
    shown: dict[str, object] = {"role": role, "content": message.text(place)}
    if message.name is not None:
        shown["name"] = message.name
    if message.tool_call_id is not None:
        shown["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        shown["tool_calls"] = [_shown_call(call) for call in message.tool_calls]
    return shown


def _shown_call(call: ToolCall) -> dict[str, object]:
    function = {"name": call.function.name, "arguments": _arguments(call.function.arguments)}
    shown: dict[str, object] = {"type": "function", "function": function}
    if call.id:
        shown["id"] = call.id
    return shown


def _arguments(given: str | dict[str, object]) -> object:
    """An object, since templates write it as JSON themselves; what is none stays a string."""
    if isinstance(given, str):
        try:
            return msgspec.json.decode(given)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return given
    return given
