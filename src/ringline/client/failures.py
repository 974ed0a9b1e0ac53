"""Errors that C callbacks could not raise: kept here, raised after the call into C returns.

libllama may return success although a node died (its last reply was only read later), so check()
after every load and every decode is not optional.
"""

from __future__ import annotations

import logging

from ringline.errors import RinglineError

__all__ = ["Failures"]

_log = logging.getLogger(__name__)


class Failures:
    """The first error sticks: what came after it is its consequence."""

    def __init__(self) -> None:
        self._first: BaseException | None = None
        self._hint: RinglineError | None = None

    def add(self, error: BaseException) -> None:
        """Remember an error; later ones are only logged."""
        if self._first is None:
            self._first = error
        _log.debug("a callback failed", exc_info=error)

    def hint(self, error: RinglineError) -> None:
        """Remember why something was refused; raised only if libllama then gives up."""
        self._hint = error

    def failed(self) -> bool:
        """Whether there is an error that sticks."""
        return self._first is not None

    def check(self) -> None:
        """Raise the first error, if there is one."""
        if self._first is not None:
            raise self._first

    def explain(self) -> None:
        """Libllama gave up: raise the error that sticks, else the last refusal, else nothing."""
        self.check()
        if self._hint is not None:
            hint, self._hint = self._hint, None
            raise hint
