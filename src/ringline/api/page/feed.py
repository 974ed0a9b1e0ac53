"""Looks at the engine once a second for all viewers, and not at all while nobody looks.

A view is encoded once. A viewer who reads slowly gets the newest view when there is room again and
misses those between, so one costs a few kilobytes however slow it is.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from ringline.api.errors import unavailable
from ringline.api.page.ring_view import Viewer
from ringline.api.state import EngineState, LogEntry
from ringline.engine.metrics import EngineMetrics
from ringline.engine.process.messages import About

__all__ = ["Feed", "Source"]

_log = logging.getLogger(__name__)

_MOST_VIEWERS: Final = 32
_INTERVAL: Final = 1.0
_MOST_ENTRIES: Final = 200


class Source(Protocol):
    """What a feed looks at: the supervisor of an engine."""

    state: EngineState
    about: About | None
    events: deque[LogEntry]
    stopping: asyncio.Event

    async def metrics(self) -> EngineMetrics | None:
        """The newest counters; None where there is no engine."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A log entry as it is sent: its number here, and the event."""

    number: int
    event: bytes


class Feed:
    """The events of `/ring/events`. For one event loop."""

    def __init__(
        self,
        source: Source,
        *,
        model: str = "",
        nodes: Sequence[str] = (),
        interval: float = _INTERVAL,
        most_viewers: int = _MOST_VIEWERS,
    ) -> None:
        """Begin without viewers.

        Args:
            source: what is looked at.
            model: its name for clients.
            nodes: endpoints of the ring.
            interval: seconds between two looks.
            most_viewers: how many may look at once.
        """
        self._source, self._model, self._nodes = source, model, nodes
        self._interval, self._most = interval, most_viewers
        # Numbers of entries begin again with each server: a viewer tells them apart by this.
        self._server = secrets.token_hex(4)
        self._entries: deque[_Entry] = deque(maxlen=_MOST_ENTRIES)
        self._newest: LogEntry | None = None
        self._number = 0
        self._ring = b""
        self._changed = asyncio.Event()
        self._viewers = 0
        self._over = False
        self._looking: asyncio.Task[None] | None = None

    @property
    def viewers(self) -> int:
        """How many look now."""
        return self._viewers

    @property
    def looking(self) -> bool:
        """Whether the engine is being looked at."""
        return self._looking is not None

    def check_room(self) -> None:
        """Refuse one viewer too many.

        Raises:
            ApiError: there are as many as there may be.
        """
        if self._viewers >= self._most:
            raise unavailable(
                f"{self._viewers} viewers look at the ring already, which is as many as may: "
                "close a page, or try again later",
                "too_many_viewers",
            )

    async def events(self) -> AsyncIterator[bytes]:
        """Yield events for one viewer until the server ends."""
        async with self._joined():
            seen = 0
            while True:
                changed = self._changed
                if self._ring:
                    entries = [entry for entry in self._entries if entry.number > seen]
                    seen = entries[-1].number if entries else seen
                    yield self._ring + b"".join(entry.event for entry in entries)
                if self._over:
                    return
                await changed.wait()

    @asynccontextmanager
    async def _joined(self) -> AsyncIterator[None]:
        """Count a viewer; the first one starts the looking, the last one ends it."""
        self._viewers += 1
        if self._looking is None:
            self._ring, self._changed = b"", asyncio.Event()
            self._looking = asyncio.create_task(self._look())
        try:
            yield
        finally:
            self._viewers -= 1
            if not self._viewers:
                looking, self._looking = self._looking, None
                looking.cancel()

    async def _look(self) -> None:
        viewer, stopping = Viewer(self._nodes), self._source.stopping
        while not self._over:
            # Looked at first: so the last view says that the server ends.
            self._over = stopping.is_set()
            try:
                await self._take(viewer)
            except Exception:  # what is shown must not end because one look failed
                _log.exception("the page: one look at the ring failed")
            self._changed.set()
            self._changed = asyncio.Event()
            with suppress(TimeoutError):
                await asyncio.wait_for(stopping.wait(), self._interval)

    async def _take(self, viewer: Viewer) -> None:
        source, about = self._source, self._source.about
        metrics = await source.metrics()
        view = viewer.view(
            source.state, metrics, model=self._model, plan=about.stages if about else ()
        )
        self._ring = _event(b"ring", msgspec.json.encode(view))
        self._take_entries()

    def _take_entries(self) -> None:
        """Number the entries that came since the last look, oldest first."""
        fresh: list[LogEntry] = []
        for entry in reversed(self._source.events):
            if entry is self._newest:
                break
            fresh.append(entry)
        for entry in reversed(fresh):
            self._number += 1
            self._entries.append(_Entry(self._number, self._encoded(entry)))
            self._newest = entry

    def _encoded(self, entry: LogEntry) -> bytes:
        facts = msgspec.to_builtins(entry)
        return _event(
            b"log",
            msgspec.json.encode({**facts, "server": self._server, "number": self._number}),
        )


def _event(kind: bytes, data: bytes) -> bytes:
    """An event of one line of JSON."""
    return b"event: " + kind + b"\ndata: " + data + b"\n\n"
