"""What jobs tell in a step is sent as one message when the step is over.

A message for each token would wake the writer and the other process that often, in the middle of
the step: what both need of this machine's processors is taken from whoever decodes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from ringline.engine.events import Event, Failure, Piece
from ringline.engine.process.error_facts import ErrorFacts
from ringline.engine.process.messages import Done, Events, Failed

__all__ = ["Telling"]


class Telling:
    """Events of jobs, kept until `flush`. Any thread tells; whoever may have told flushes."""

    def __init__(self, send: Callable[[Events], object]) -> None:
        """Begin with nothing.

        Args:
            send: takes the messages.
        """
        self._send = send
        # Guards what is kept, and the order in which it is sent.
        self._lock = threading.Lock()
        self._texts: list[tuple[int, Piece]] = []
        self._ends: list[Done | Failed] = []

    def tell(self, job: int, event: Event) -> None:
        """Keep an event."""
        with self._lock:
            if isinstance(event, Piece):
                self._texts.append((job, event))
            elif isinstance(event, Failure):
                self._ends.append(Failed(job, ErrorFacts.of(event.error)))
            else:
                self._ends.append(Done(job, event))

    def flush(self) -> None:
        """Send what is kept; nothing where there is nothing."""
        with self._lock:
            if self._texts or self._ends:
                self._send(Events(self._texts, self._ends))
                self._texts, self._ends = [], []
