"""Read the golden bytes: every base command as the stock client and server put it on the wire.

tests/golden/README.md describes the index. A frame is whole: a request with its command byte and
length, a reply with its length.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

FOLDER = Path(__file__).resolve().parents[1] / "golden"
INDEX = FOLDER / "index.json"
REQUEST_HEAD_SIZE, REPLY_HEAD_SIZE = 9, 8


@dataclass(frozen=True, slots=True)
class GoldenFrame:
    """One captured frame and its meaning.

    Attributes:
        exchange: a reply has the number of its request.
        name: what the exchange shows, e.g. `alloc_buffer_no_room`; no other exchange has it.
        command: name of the command, e.g. `ALLOC_BUFFER`; id: its number.
        direction: who sent it, client (`request`) or server (`reply`).
        raw: the frame as it went over the wire.
        fields: what its sender meant, by field.
    """

    exchange: int
    name: str
    command: str
    id: int
    direction: Literal["request", "reply"]
    raw: bytes
    fields: dict[str, Any]

    @property
    def body(self) -> bytes:
        """The frame without command byte and length."""
        return self.raw[REQUEST_HEAD_SIZE if self.direction == "request" else REPLY_HEAD_SIZE :]

    def __str__(self) -> str:
        return f"{self.name}-{self.direction}"  # what pytest calls the case


@cache
def golden_frames(direction: str | None = None, command: str | None = None) -> list[GoldenFrame]:
    """The frames in the order of the wire, all or those of one direction or command."""
    return [
        _read(entry)
        for entry in json.loads(INDEX.read_text())["messages"]
        if direction in (None, entry["direction"]) and command in (None, entry["command"])
    ]


def golden_frame(name: str, direction: Literal["request", "reply"]) -> GoldenFrame:
    """One frame by the name of its exchange."""
    (frame,) = (frame for frame in golden_frames(direction) if frame.name == name)
    return frame


def _read(entry: dict[str, Any]) -> GoldenFrame:
    raw = (FOLDER / entry["file"]).read_bytes()
    if entry["stored"] < entry["size"]:
        raw += pattern(entry["size"] - entry["stored"])
    assert hashlib.sha256(raw).hexdigest() == entry["sha256"], f"{entry['file']} was changed"
    kept = ("exchange", "name", "command", "id", "direction", "fields")
    return GoldenFrame(raw=raw, **{key: entry[key] for key in kept})


def pattern(size: int) -> bytes:
    """The data that is not stored: byte i is i % 251."""
    return (bytes(range(251)) * (size // 251 + 1))[:size]
