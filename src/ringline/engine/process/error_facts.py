"""Errors of ours as values: they cross the engine's socket and are whole again behind it."""

from __future__ import annotations

from typing import Any

import msgspec

from ringline import errors
from ringline.errors import EngineError, RinglineError

__all__ = ["ErrorFacts"]


class ErrorFacts(msgspec.Struct, frozen=True):
    """An error of ours: the name of its class, and what its sentence is made from."""

    kind: str
    cause: str
    peer: str = ""
    command: str | None = None
    since: tuple[str, ...] = ()
    seconds: float = 0.0

    @classmethod
    def of(cls, error: RinglineError) -> ErrorFacts:
        """Take an error apart."""
        kind = type(error).__name__
        if not isinstance(error, errors.NetworkError | errors.PeerError):
            return cls(kind, str(error))
        seconds = error.seconds if isinstance(error, errors.DeadlineError) else 0.0
        return cls(kind, error.cause, error.peer, error.command, error.since, seconds)

    def error(self) -> RinglineError:
        """Put it together again."""
        kind: type[RinglineError] = getattr(errors, self.kind, EngineError)
        about: dict[str, Any] = {}
        if issubclass(kind, errors.NetworkError | errors.PeerError):
            about = {"peer": self.peer, "command": self.command, "since": self.since}
        if kind is errors.DeadlineError:
            about["seconds"] = self.seconds
        return kind(self.cause, **about)
