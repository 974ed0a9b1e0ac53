"""Says who is waited for when a step takes long. It ends nothing: deadlines of replies do that."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

from ringline.engine.desk import Desk

__all__ = ["Watchdog"]

_log = logging.getLogger(__name__)


class Watchdog:
    """A thread that looks at the steps under way, several times in each `deadline`."""

    def __init__(
        self, desk: Desk, waiting: Callable[[int], Sequence[str]], *, deadline: float
    ) -> None:
        """Begin to watch.

        Args:
            desk: knows the steps.
            waiting: who a group waits for now, in words.
            deadline: seconds after which a step is worth a line, and again at twice the time.
        """
        self._desk = desk
        self._waiting = waiting
        self._deadline = deadline
        self._closed = threading.Event()
        self._told: dict[int, float] = {}
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop watching; may be called again."""
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._deadline / 4):
            self._look()

    def _look(self) -> None:
        for group, metrics in enumerate(self._desk.metrics().groups):
            limit = self._told.get(group, 0.0) * 2 or self._deadline
            if metrics.step_seconds < self._deadline:
                self._told.pop(group, None)
            elif metrics.step_seconds >= limit:
                self._told[group] = metrics.step_seconds
                _log.warning(
                    "group %d has been in one step for %.0f s with %d requests; waiting for %s",
                    group,
                    metrics.step_seconds,
                    metrics.busy_slots,
                    ", ".join(self._waiting(group)),
                )
