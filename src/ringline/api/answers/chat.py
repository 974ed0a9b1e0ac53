"""The answer of /v1/chat/completions, whole and as events."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import msgspec

from ringline.api.answers.head import DONE, Head, event
from ringline.api.answers.logprobs import ChatLogprobs
from ringline.api.answers.usage import FINISH, timings, usage
from ringline.api.tools.reader import CallArguments, CallBegin, Said, Spoken, ToolReader
from ringline.engine.events import Outcome, Piece, TokenLogprob

__all__ = ["ChatAnswer"]

_encode = msgspec.json.Encoder().encode
_FIRST = b'{"role":"assistant","content":null}'


class ChatAnswer:
    """Makes the answer of one request from what its jobs tell."""

    closing = DONE

    def __init__(
        self,
        head: Head,
        *,
        wants_logprobs: bool,
        wants_usage: bool,
        reader: Callable[[], ToolReader] | None = None,
    ) -> None:
        """Begin an answer.

        Args:
            head: what all its objects share.
            wants_logprobs: whether each text comes with them.
            wants_usage: whether a stream ends with counts.
            reader: makes what finds calls of tools in a text; None: there are no tools.
        """
        self._head = head
        self._wants_logprobs = wants_logprobs
        self._wants_usage = wants_usage
        self._reader = reader
        self._readers: dict[int, ToolReader] = {}
        self._opening = head.opening()
        self._end = b'],"usage":null}\n\n' if wants_usage else b"]}\n\n"

    def begin(self, count: int) -> bytes:
        """The events that say who speaks."""
        if self._reader is not None:
            self._readers = {index: self._reader() for index in range(count)}
        return b"".join(self._event(index, _FIRST) for index in range(count))

    def piece(self, index: int, piece: Piece) -> bytes:
        """The events of a piece of text."""
        logprobs = self._logprobs(piece.logprobs)
        if not self._readers:
            return self._event(index, b'{"content":%b}' % _encode(piece.text), logprobs)
        return self._spoken(index, self._readers[index].feed(piece.text), logprobs)

    def end(self, index: int, outcome: Outcome) -> bytes:
        """The events of a text's end."""
        reader = self._readers.get(index)
        rest = self._spoken(index, reader.end(), b"null") if reader else b""
        reason = "tool_calls" if reader and reader.called else FINISH[outcome.stop_reason]
        return rest + self._event(index, b"{}", finish=_encode(reason))

    def last(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """The event with the counts, if it is wanted."""
        if not self._wants_usage:
            return b""
        return event({**self._head.members(), "choices": [], **_totals(outcomes)})

    def whole(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """The answer as one object."""
        choices = [self._choice(index, outcome) for index, outcome in sorted(outcomes.items())]
        return _encode({**self._head.members(), "choices": choices, **_totals(outcomes)})

    def _choice(self, index: int, outcome: Outcome) -> dict[str, object]:
        message: dict[str, object] = {"role": "assistant", "content": outcome.text}
        reason = FINISH[outcome.stop_reason]
        if self._reader is not None:
            reader = self._reader()
            content, calls = _collected([*reader.feed(outcome.text), *reader.end()])
            if calls:
                message = {"role": "assistant", "content": content or None, "tool_calls": calls}
                reason = "tool_calls" if reader.called else reason
        logprobs = ChatLogprobs.shape(outcome.logprobs) if self._wants_logprobs else None
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> bytes:
        return _encode(ChatLogprobs.shape(entries)) if self._wants_logprobs else b"null"

    def _spoken(self, index: int, spoken: Sequence[Spoken], logprobs: bytes) -> bytes:
        """Events of what a reader made of a piece; the first has the piece's logprobs."""
        events = []
        for told in spoken:
            events.append(self._event(index, _delta(told), logprobs))
            logprobs = b"null"
        if logprobs != b"null":  # all text is held back, its logprobs are not
            events.append(self._event(index, b'{"content":""}', logprobs))
        return b"".join(events)

    def _event(
        self, index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null"
    ) -> bytes:
        return b'%b{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}%b' % (
            self._opening,
            index,
            delta,
            logprobs,
            finish,
            self._end,
        )


def _totals(outcomes: Mapping[int, Outcome]) -> dict[str, object]:
    # All choices have the same prompt.
    return {"usage": usage(outcomes, len(outcomes)), "timings": timings(outcomes)}


def _delta(told: Spoken) -> bytes:
    match told:
        case Said(text):
            return b'{"content":%b}' % _encode(text)
        case CallBegin(number, name, id):
            function: dict[str, str] = {"name": name, "arguments": ""}
            call = {"index": number, "id": id, "type": "function", "function": function}
            return _encode({"tool_calls": [call]})
        case CallArguments(number, text):
            return _encode({"tool_calls": [{"index": number, "function": {"arguments": text}}]})


def _collected(spoken: Sequence[Spoken]) -> tuple[str, list[dict[str, object]]]:
    """The content, and the calls with all their arguments."""
    content: list[str] = []
    names: list[CallBegin] = []
    arguments: dict[int, list[str]] = {}
    for told in spoken:
        match told:
            case Said(text):
                content.append(text)
            case CallBegin():
                names.append(told)
            case CallArguments(number, text):
                arguments.setdefault(number, []).append(text)
    calls: list[dict[str, object]] = [
        {
            "id": call.id,
            "type": "function",
            "function": {"name": call.name, "arguments": "".join(arguments.get(call.number, []))},
        }
        for call in names
    ]
    return "".join(content), calls
