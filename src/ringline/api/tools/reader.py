"""Tells calls of tools from text, in an answer that comes in pieces.

Two ways of writing a call are known: between <tool_call> marks anywhere in the text (Hermes, Qwen),
and a JSON object as the answer's beginning (Llama 3, and any call that a grammar has forced).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass
from typing import Final, TypeAlias

from ringline.api.tools.call import CallArguments, CallBegin, CallReader

__all__ = ["CallArguments", "CallBegin", "Said", "Spoken", "ToolReader"]

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer."""

    text: str


Spoken: TypeAlias = Said | CallBegin | CallArguments


class ToolReader:
    """Reads one answer."""

    def __init__(self, names: Set[str], *, bare: bool) -> None:
        """Begin.

        Args:
            names: functions that may be called; a call of another one is text.
            bare: whether an answer that begins with an object may be a call.
        """
        self._names = names
        self._bare = bare
        self._held = ""
        self._call: CallReader | None = None
        self._marked = False
        self._n_calls = 0
        self._said = False

    @property
    def called(self) -> bool:
        """Whether there are calls, and all of them are whole."""
        return self._n_calls > 0 and self._call is None

    def feed(self, text: str) -> list[Spoken]:
        """Take more text; what is certain now."""
        self._held += text
        spoken: list[Spoken] = []
        while self._held:
            before = (self._held, self._call)
            spoken += self._in_call() if self._call else self._in_text()
            if before == (self._held, self._call):  # more has to come before anything is certain
                break
        return spoken

    def end(self) -> list[Spoken]:
        """The answer is over: what was held back."""
        call, self._call = self._call, None
        if call is None or call.begun:
            if call is not None:
                self._n_calls = 0  # cut off in the middle: no call can be made of it
            rest, self._held = self._held, ""
            return self._say(rest)
        rest, self._held = f"{_OPEN if self._marked else ''}{call.text}{self._held}", ""
        return self._say(rest)

    def _in_call(self) -> list[Spoken]:
        assert self._call is not None
        text, self._held = self._held, ""
        call = self._call
        spoken: list[Spoken] = [*call.feed(text)]
        if call.failed:
            self._call, self._bare = None, False
            return [*spoken, *self._say(f"{_OPEN if self._marked else ''}{call.text}{call.rest}")]
        if call.done:
            self._call = None
            self._n_calls += 1
            self._held = call.rest
        return spoken

    def _in_text(self) -> list[Spoken]:
        if self._n_calls:
            self._skip_close()
        stripped = self._held.lstrip()
        if self._bare and not self._said and stripped[:1] == "{":
            return self._begin(len(self._held) - len(stripped), "")
        place = self._held.find(_OPEN)
        if place >= 0:
            return self._begin(place, _OPEN)
        n_held = _partial(self._held, _OPEN)
        if self._n_calls:
            n_held = max(n_held, _partial(self._held, _CLOSE))
        n_shown = len(self._held) - n_held
        if not self._said and not self._held[:n_shown].strip():
            return []  # blanks before a call are none of the answer
        shown, self._held = self._held[:n_shown], self._held[n_shown:]
        return self._say(shown)

    def _begin(self, place: int, mark: str) -> list[Spoken]:
        """A call begins at `place`, behind its mark."""
        before = self._held[:place]
        self._held = self._held[place + len(mark) :]
        self._marked = bool(mark)
        self._call = CallReader(self._n_calls, self._names)
        return self._say(before) if before.strip() else []

    def _skip_close(self) -> None:
        """Drop the mark behind a call, and the blanks round it."""
        text = self._held.lstrip()
        if text.startswith(_CLOSE):
            text = text[len(_CLOSE) :].lstrip()
        self._held = text

    def _say(self, text: str) -> list[Spoken]:
        if not text:
            return []
        self._said = True
        return [Said(text)]


def _partial(text: str, mark: str) -> int:
    """Length of the longest end of a text that begins a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
