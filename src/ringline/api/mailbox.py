"""From the thread that hears of the engine to the event loop: one wake-up for all that came.

A step brings a token of every stream; waking the loop for each would cost more than the answers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TypeAlias

from ringline.engine.events import Event, Sink

__all__ = ["Inbox", "Mailbox"]

#: number of the choice, and what its job told.
Letter: TypeAlias = tuple[int, Event]


class Inbox:
    """What the jobs of one request told; read by one task of the loop."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []
        self._waiting: asyncio.Future[None] | None = None

    def put(self, letter: Letter) -> None:
        """Take an event in; on the loop's thread."""
        self._letters.append(letter)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def take(self) -> list[Letter]:
        """Wait until there is something, and take all of it; the engine's end is something too."""
        if not self._letters:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
            self._waiting = None
        letters, self._letters = self._letters, []
        return letters


class Mailbox:
    """Brings events of all jobs to the loop. One thread puts in, the loop's takes out."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        """Begin with nothing.

        Args:
            loop: where the inboxes are read.
        """
        self._loop = loop
        self._events: deque[tuple[Inbox, int, Event]] = deque()
        self._called = False

    def sink(self, inbox: Inbox, index: int) -> Sink:
        """What takes the events of a job for an inbox, as those of choice `index`."""

        def tell(event: Event) -> None:
            self._events.append((inbox, index, event))
            if not self._called:
                self._called = True
                self._loop.call_soon_threadsafe(self._deliver)

        return tell

    def _deliver(self) -> None:
        # Before the queue is looked at: what comes after that look calls again.
        self._called = False
        while self._events:
            inbox, index, event = self._events.popleft()
            inbox.put((index, event))
