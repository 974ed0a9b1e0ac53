"""Commands that wait to be sent on one connection, and the form in which they are sent.

Without an encoder each is a frame of its own. With one, whatever it accepts becomes part of a STEP
(extension level 5); the node unpacks the very same commands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from ringline.client.counters import Traffic
from ringline.wire.commands import Command
from ringline.wire.frames import REQUEST_HEADER
from ringline.wire.thin import Encoder
from ringline.wire.thin.layouts import MOST_COMMANDS

__all__ = ["Entry", "Outbox"]

_GRAPHS: Final = frozenset({Command.GRAPH_COMPUTE, Command.GRAPH_RECOMPUTE})
Bytes = bytes | bytearray | memoryview


class Entry(NamedTuple):
    """One command: which, the parts of its body, the body's size in bytes."""

    command: Command
    parts: tuple[Bytes, ...]
    size: int


class Outbox:
    """A queue. The owner of the connection guards it; `frames` is called by one sender at a time.

    Attributes:
        size: bytes that wait, as frames of their own would take them.
        graphs: how many graphs wait.
        encoder: makes a STEP of what it accepts; None: nothing is encoded.
    """

    def __init__(self, traffic: Traffic) -> None:
        self.size = 0
        self.graphs = 0
        self.encoder: Encoder | None = None
        self._traffic = traffic
        self._entries: list[Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, command: Command, parts: tuple[Bytes, ...]) -> int:
        """Queue a command; the bytes of its body."""
        size = sum(map(len, parts))
        self._entries.append(Entry(command, parts, size))
        self.size += REQUEST_HEADER.size + size
        self.graphs += command in _GRAPHS
        return size

    def take(self) -> list[Entry]:
        """Take everything out."""
        entries, self._entries, self.size, self.graphs = self._entries, [], 0, 0
        return entries

    def frames(self, entries: Sequence[Entry]) -> list[Bytes]:
        """The bytes to send for these commands, in order, counted as sent."""
        encoder = self.encoder
        if encoder is None:
            return [part for entry in entries for part in self._frame(entry)]
        parts: list[Bytes] = []
        step: list[Entry] = []
        for entry in entries:
            fits = encoder.accepts(entry.command, entry.size)
            if not fits or len(step) == MOST_COMMANDS:
                parts += self._step(encoder, step)
                step = []
            if fits:
                step.append(entry)
            else:
                parts += self._frame(entry)
        return parts + self._step(encoder, step)

    def _frame(self, entry: Entry) -> list[Bytes]:
        self._traffic.sent(entry.command.name, REQUEST_HEADER.size + entry.size)
        return [REQUEST_HEADER.pack(entry.command, entry.size), *entry.parts]

    def _step(self, encoder: Encoder, entries: Sequence[Entry]) -> list[Bytes]:
        if not entries:
            return []
        body = encoder.encode([(entry.command, b"".join(entry.parts)) for entry in entries])
        for entry in entries:
            self._traffic.sent(entry.command.name, 0)
        self._traffic.sent(Command.STEP.name, REQUEST_HEADER.size + len(body))
        return [REQUEST_HEADER.pack(Command.STEP, len(body)), body]
