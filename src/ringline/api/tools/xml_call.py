"""One call in XML, as Qwen's coders and others write it, behind its mark `<function=`.

    name>
    <parameter=city>
    Rome
    </parameter>
    </function>

or with one object, name>{"city": "Rome"}</function>. It is told when it is whole: what a value is
depends on the function's schema.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from ringline.api.tools.call import CallArguments, CallBegin, Reading

__all__ = ["FUNCTION", "XmlReader"]

FUNCTION: Final = "<function="
_END: Final = "</function>"
_NAME: Final = re.compile(r"\s*(?P<name>[^<>\s]+)\s*>\s*")
_LONGEST_NAME: Final = 256
#: a value may hold what looks like an end; the end is where another part follows.
_PARAMETER: Final = re.compile(
    r"<parameter=(?P<name>[^<>]+)>\n?(?P<value>.*?)\n?</parameter>"
    r"(?=\s*(?:<parameter=|</function>))\s*",
    re.DOTALL,
)


class XmlReader(Reading):
    """Reads one call."""

    def __init__(self, number: int, functions: Mapping[str, Mapping[str, object] | None]) -> None:
        """Begin.

        Args:
            number: of the call in its answer.
            functions: that may be called, with the schemas of their arguments.
        """
        super().__init__(number)
        self._functions = functions

    def feed(self, text: str) -> list[CallBegin | CallArguments]:
        """Take more text; what it tells."""
        self.text += text
        if ">" not in text:  # nothing ends here
            self.failed = ">" not in self.text and len(self.text) > _LONGEST_NAME
            return []
        found = _NAME.match(self.text)
        if not found or found["name"] not in self._functions:
            self.failed = True
            return []
        arguments, end = self._arguments(found["name"], found.end())
        if end < 0:
            return []
        self.rest, self.text = self.text[end:], self.text[:end]
        self.begun = self.done = True
        told = msgspec.json.encode(arguments).decode()
        return [CallBegin(self._number, found["name"]), CallArguments(self._number, told)]

    def _arguments(self, name: str, place: int) -> tuple[dict[str, object], int]:
        """The arguments, and the place behind the call; -1: it is not whole."""
        if self.text.startswith("{", place):
            return self._object(place)
        schemas = (self._functions[name] or {}).get("properties")
        arguments: dict[str, object] = {}
        while found := _PARAMETER.match(self.text, place):
            schema = schemas.get(found["name"]) if isinstance(schemas, Mapping) else None
            arguments[found["name"]] = _value(found["value"], schema)
            place = found.end()
        whole = self.text.startswith(_END, place)
        return arguments, place + len(_END) if whole else -1

    def _object(self, place: int) -> tuple[dict[str, object], int]:
        end = self.text.rfind(_END)
        if end < 0:
            return {}, -1
        try:
            found = msgspec.json.decode(self.text[place:end], type=dict[str, object])
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return {}, -1
        return found, end + len(_END)


def _value(text: str, schema: object) -> object:
    """A value is JSON, unless its schema says that it is a text, or it is none."""
    kind = schema.get("type") if isinstance(schema, Mapping) else None
    if kind == "string" or (isinstance(kind, list) and "string" in kind):
        return text
    try:
        return msgspec.json.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return text
