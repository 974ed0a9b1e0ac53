"""Tells calls of tools from text, in an answer that comes in pieces.

Known ways of writing a call, the first four anywhere in the text:

    <tool_call>{"name": ..., "arguments": ...}</tool_call>      Hermes, Qwen
    <function=name>...</function>, in <tool_call> or not        Qwen's coders: xml_call.py
    [TOOL_CALLS][{"name": ..., "arguments": ...}, ...]          Mistral
    [TOOL_CALLS]name[ARGS]{...}                                 Mistral's newer models: named.py
    {"name": ..., "parameters": ...} as the beginning           Llama 3, and what a grammar forces
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from ringline.api.tools.call import CallArguments, CallBegin, CallReader
from ringline.api.tools.named import NamedReader
from ringline.api.tools.xml_call import FUNCTION, XmlReader

__all__ = ["CallArguments", "CallBegin", "Said", "Spoken", "ToolReader"]

_OPEN: Final = "<tool_call>"
_CLOSE: Final = "</tool_call>"
_MISTRAL: Final = "[TOOL_CALLS]"
_MARKS: Final = (_OPEN, FUNCTION, _MISTRAL)
#: the first of all marks in a text.
_ANY_MARK: Final = re.compile("|".join(map(re.escape, _MARKS)))
#: between the calls of a list, and behind the last one.
_BETWEEN: Final = ", \n\t"


@dataclass(frozen=True, slots=True)
class Said:
    """Text of the answer."""

    text: str


Spoken: TypeAlias = Said | CallBegin | CallArguments


class ToolReader:
    """Reads one answer."""

    def __init__(self, functions: Mapping[str, Mapping[str, object] | None], *, bare: bool) -> None:
        """Begin.

        Args:
            functions: that may be called, with the schemas of their arguments; a call of another
                one is text.
            bare: whether an answer that begins with an object may be a call.
        """
        self._functions = functions
        self._bare = bare
        self._held = ""
        self._call: CallReader | NamedReader | XmlReader | None = None
        #: what stood before the call under way.
        self._mark = ""
        self._listed = False
        self._n_calls = 0
        self._said = False
        #: whether text was the last thing that was told.
        self._amid_text = False

    @property
    def called(self) -> bool:
        """Whether there are calls, and all of them are whole."""
        return self._n_calls > 0 and self._call is None

    def feed(self, text: str) -> list[Spoken]:
        """Take more text; what is certain now."""
        self._held += text
        spoken: list[Spoken] = []
        while self._held:
            before = (self._held, self._call, self._listed)
            spoken += self._in_call() if self._call else self._in_text()
            # More has to come before anything is certain.
            if before == (self._held, self._call, self._listed):
                break
        return spoken

    def end(self) -> list[Spoken]:
        """The answer is over: what was held back."""
        call, self._call = self._call, None
        if call is None or call.begun:
            if call is not None:
                self._n_calls = 0  # cut off in the middle: no call can be made of it
            rest, self._held = self._held, ""
            return self._say("" if self._listed else rest)
        rest, self._held = f"{self._mark}{call.text}{self._held}", ""
        return self._say(rest)

    def _in_call(self) -> list[Spoken]:
        assert self._call is not None
        text, self._held = self._held, ""
        call = self._call
        spoken: list[Spoken] = [*call.feed(text)]
        if call.failed:
            self._call, self._bare, self._listed = None, False, False
            return [*spoken, *self._say(f"{self._mark}{call.text}{call.rest}")]
        if call.done:
            self._call = None
            self._n_calls += 1
            self._amid_text = False
            self._held = call.rest
        return spoken

    def _in_text(self) -> list[Spoken]:
        if self._listed:
            return self._in_list()
        if self._n_calls and not self._amid_text:
            self._skip_close()
        stripped = self._held.lstrip()
        if self._bare and not self._said and stripped[:1] == "{":
            return self._begin(len(self._held) - len(stripped), "")
        found = _ANY_MARK.search(self._held)
        if found:
            return self._at_mark(found.start(), found[0])
        n_held = max(_partial(self._held, mark) for mark in _MARKS)
        if self._n_calls:
            n_held = max(n_held, _partial(self._held, _CLOSE))
        n_shown = len(self._held) - n_held
        if not self._said and not self._held[:n_shown].strip():
            return []  # blanks before a call are none of the answer
        shown, self._held = self._held[:n_shown], self._held[n_shown:]
        return self._say(shown)

    def _at_mark(self, place: int, mark: str) -> list[Spoken]:
        """A call begins at `place`, if what follows its mark is here already."""
        behind = self._held[place + len(mark) :]
        stripped = behind.lstrip()
        blanks = behind[: len(behind) - len(stripped)]
        if mark == FUNCTION or (stripped and not FUNCTION.startswith(stripped)):
            if mark == _MISTRAL and stripped[0] == "[":
                self._listed = True
                mark += f"{blanks}["
            elif mark == _OPEN and stripped.startswith(FUNCTION):
                mark += blanks + FUNCTION
            return self._begin(place, mark)
        return []

    def _in_list(self) -> list[Spoken]:
        """Between the calls of a list."""
        self._held = self._held.lstrip(_BETWEEN)
        if self._held.startswith("{"):
            return self._begin(0, "")
        if self._held:
            self._listed = False
            self._held = self._held.removeprefix("]")
        return []

    def _begin(self, place: int, mark: str) -> list[Spoken]:
        """A call begins at `place`, behind its mark."""
        before = self._held[:place]
        self._held = self._held[place + len(mark) :]
        self._mark = mark
        if mark.endswith(FUNCTION):
            self._call = XmlReader(self._n_calls, self._functions)
        elif mark == _MISTRAL:
            self._call = NamedReader(self._n_calls, self._functions)
        else:
            self._call = CallReader(self._n_calls, self._functions.keys())
        # Blanks between calls are nobody's; those behind a text are its own, in pieces as in one.
        own = before.strip() or self._amid_text
        return self._say(before) if own else []

    def _skip_close(self) -> None:
        """Drop the mark behind a call, and the blanks round it."""
        text = self._held.lstrip()
        if text.startswith(_CLOSE):
            text = text[len(_CLOSE) :].lstrip()
        self._held = text

    def _say(self, text: str) -> list[Spoken]:
        if not text:
            return []
        self._said = self._amid_text = True
        return [Said(text)]


def _partial(text: str, mark: str) -> int:
    """Length of the longest end of a text that begins a mark."""
    for length in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-length:]):
            return length
    return 0
