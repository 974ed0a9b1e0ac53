"""Where a JSON object ends in a text that comes in pieces."""

from __future__ import annotations

__all__ = ["ObjectScan"]


class ObjectScan:
    """Follows the brackets of one object. `depth` is 0 before it and after it."""

    def __init__(self) -> None:
        self.depth = 0
        self._in_string = False
        self._escaped = False

    def feed(self, text: str, start: int, *, until: int = 0) -> int:
        """Follow a text; the place behind the bracket that brings `depth` to `until`, or -1.

        Args:
            text: the next part is text[start:].
            start: index of the first character that was not fed before.
            until: 0 for the object's end, 1 for the end of an object in it.
        """
        for index in range(start, len(text)):
            if self._step(text[index]) and self.depth == until:
                return index + 1
        return -1

    def _step(self, character: str) -> bool:
        """Take a character; whether it is a closing bracket."""
        if self._in_string:
            if self._escaped:
                self._escaped = False
            elif character == "\\":
                self._escaped = True
            elif character == '"':
                self._in_string = False
            return False
        if character == '"':
            self._in_string = True
        elif character in "{[":
            self.depth += 1
        elif character in "}]":
            self.depth -= 1
            return True
        return False
