"""A job in an engine's process, as its client sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import TypeVar

from ringline.engine.events import Event, Failure, Outcome, Piece, Sink, Stream

__all__ = ["RemoteJob", "pending"]

T = TypeVar("T")


def pending() -> Future[T]:
    """A future that whoever waits for it cannot cancel: its result always has where to go."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()
    return future


class RemoteJob:
    """A job in an engine's process. Iterate over it for pieces of text; any thread may use it."""

    def __init__(self, number: int, sink: Sink | None, cancel: Callable[[int], None]) -> None:
        self.number = number
        self.accepted: Future[None] = pending()
        self._stream = Stream()
        self._sink = sink or self._stream.put
        self._cancel = cancel

    def __iter__(self) -> Iterator[Piece]:
        """Yield pieces as they become whole, until it ends.

        Raises:
            RinglineError: why it failed.
        """
        return iter(self._stream)

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the end. A job whose events go to a sink has none here.

        Args:
            timeout: seconds; None: as long as it takes.

        Raises:
            CallerError: it has not ended within `timeout`.
            RinglineError: why it failed.
        """
        return self._stream.result(timeout)

    def cancel(self) -> None:
        """End it, at the latest with the step under way; one that has ended stays as it is."""
        self._cancel(self.number)

    def accept(self) -> None:
        """It was taken in; for the client only."""
        if not self.accepted.done():
            self.accepted.set_result(None)

    def tell(self, event: Event) -> None:
        """Take the next event; for the client only."""
        if isinstance(event, Failure) and not self.accepted.done():
            self.accepted.set_exception(event.error)
            return
        self.accept()
        self._sink(event)
