"""One call as Mistral's newer models write it: name[ARGS]{...}, read while it comes."""

from __future__ import annotations

import re
from collections.abc import Container

from ringline.api.tools.call import CallArguments, CallBegin, Reading
from ringline.api.tools.json_scan import ObjectScan

__all__ = ["NamedReader"]

_HEAD = re.compile(r"\s*(?P<name>[^\s\[\]{}]+)(?:\[CALL_ID\][^\[{]*)?(?:\[ARGS\])?\s*(?=\{)")
#: a name and an id are shorter; what goes on without an object is none.
_LONGEST_HEAD = 256


class NamedReader(Reading):
    """Reads one call."""

    def __init__(self, number: int, names: Container[str]) -> None:
        """Begin.

        Args:
            number: of the call in its answer.
            names: functions that may be called.
        """
        super().__init__(number)
        self._names = names
        self._scan = ObjectScan()
        self._told = 0

    def feed(self, text: str) -> list[CallBegin | CallArguments]:
        """Take more text; what it tells."""
        self.text += text
        told: list[CallBegin | CallArguments] = []
        if not self.begun:
            told += self._head()
        if self.begun:
            told += self._arguments()
        return told

    def _head(self) -> list[CallBegin]:
        found = _HEAD.match(self.text)
        if not found:
            self.failed = "{" in self.text or len(self.text) > _LONGEST_HEAD
            return []
        if found["name"] not in self._names:
            self.failed = True
            return []
        self.begun, self._told = True, found.end()
        return [CallBegin(self._number, found["name"])]

    def _arguments(self) -> list[CallArguments]:
        end = self._scan.feed(self.text, self._told)
        if end >= 0:
            self.rest, self.text = self.text[end:], self.text[:end]
            self.done = True
        more, self._told = self.text[self._told :], len(self.text)
        return [CallArguments(self._number, more)] if more else []
