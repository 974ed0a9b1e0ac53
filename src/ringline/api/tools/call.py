"""One call as a model writes it: {"name": "...", "arguments": {...}}, read while it comes.

The arguments are told as they are written, as OpenAI's API does it. Where the members stand in
another order, the call is told when it is whole.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Set
from dataclasses import dataclass, field

import msgspec

from ringline.api.tools.json_scan import ObjectScan

__all__ = ["CallArguments", "CallBegin", "CallReader", "Reading"]

_HEAD = re.compile(
    r'\s*\{\s*"name"\s*:\s*"(?P<name>[^"\\]*)"\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\{)'
)


@dataclass(frozen=True, slots=True)
class CallBegin:
    """A call begins: its number in the answer, the function, a name of its own.

    The name is of nine letters and digits: Mistral's templates take no other.
    """

    number: int
    name: str
    id: str = field(default_factory=lambda: secrets.token_hex(5)[:9])


@dataclass(frozen=True, slots=True)
class CallArguments:
    """More of a call's arguments, as JSON text."""

    number: int
    text: str


class Reading:
    """What all readers of one call know of it.

    Attributes:
        text: what came so far.
        begun: whether its beginning was told.
        done: whether the call is over; what came behind it is `rest`.
        rest: text behind the call.
        failed: whether it is no call of a known function; then all of `text` is text.
    """

    def __init__(self, number: int) -> None:
        """Begin with the call of that number in its answer."""
        self.text = ""
        self.rest = ""
        self.begun = False
        self.done = False
        self.failed = False
        self._number = number


class CallReader(Reading):
    """Reads one call."""

    def __init__(self, number: int, names: Set[str]) -> None:
        """Begin.

        Args:
            number: of the call in its answer.
            names: functions that may be called.
        """
        super().__init__(number)
        self._names = names
        self._scan = ObjectScan()
        self._fed = 0
        self._told = 0
        self._arguments_end = -1

    def feed(self, text: str) -> list[CallBegin | CallArguments]:
        """Take more text; what it tells."""
        self.text += text
        told: list[CallBegin | CallArguments] = []
        if not self.begun:
            told += self._head()
        if self.failed:
            return []
        if self.begun:
            told += self._more_arguments()
        if not self.begun or self._arguments_end >= 0:
            told += self._look_for_end()
        return told

    def _head(self) -> list[CallBegin | CallArguments]:
        found = _HEAD.match(self.text)
        if not found:
            return []
        if found["name"] not in self._names:
            self.failed = True
            return []
        self.begun = True
        self._scan, self._fed = ObjectScan(), found.end()
        self._scan.depth = 1  # inside of the call
        self._told = found.end()
        return [CallBegin(self._number, found["name"])]

    def _more_arguments(self) -> list[CallBegin | CallArguments]:
        if self._arguments_end >= 0:
            return []
        end = self._scan.feed(self.text, self._fed, until=1)
        self._arguments_end = end
        self._fed = len(self.text) if end < 0 else end
        more, self._told = self.text[self._told : self._fed], self._fed
        return [CallArguments(self._number, more)] if more else []

    def _look_for_end(self) -> list[CallBegin | CallArguments]:
        end = self._scan.feed(self.text, self._fed)
        self._fed = len(self.text)
        if end < 0:
            return []
        self.rest, self.text = self.text[end:], self.text[:end]
        self.done = True
        return [] if self.begun else self._whole()

    def _whole(self) -> list[CallBegin | CallArguments]:
        """Read a call whose members stand in another order."""
        try:
            call = msgspec.json.decode(self.text, type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            call = {}
        name, arguments = call.get("name"), call.get("arguments", call.get("parameters"))
        if name not in self._names or not isinstance(arguments, dict | str):
            self.failed = True
            return []
        self.begun = True
        text = arguments if isinstance(arguments, str) else msgspec.json.encode(arguments).decode()
        return [CallBegin(self._number, str(name)), CallArguments(self._number, text)]
