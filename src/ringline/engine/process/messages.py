"""What an engine's process and its client say to each other: one class for each message.

The client opens once and then submits, cancels and asks for metrics; the engine tells the events of
jobs as they come. Jobs and questions are named by numbers that the client chooses.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ringline import errors
from ringline.engine.engine import DEFAULT_PARALLEL
from ringline.engine.events import Outcome, Piece
from ringline.engine.job import Request
from ringline.engine.metrics import EngineMetrics
from ringline.engine.placement import Stage
from ringline.engine.ring_model import DEFAULT_BATCH, DEFAULT_CONTEXT
from ringline.errors import EngineError, RinglineError

__all__ = [
    "About",
    "Accepted",
    "AskMetrics",
    "Cancel",
    "Done",
    "EngineSpec",
    "ErrorFacts",
    "Failed",
    "FromClient",
    "FromEngine",
    "Loading",
    "Metrics",
    "Open",
    "Ready",
    "Submit",
    "Text",
]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine is wanted: what Ring, Ring.place and Engine are given.

    `nodes` are endpoints; `local_stages` starts so many nodes instead.
    """

    model: str
    nodes: tuple[str, ...] = ()
    local_stages: int = 0
    devices: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    n_gpu_layers: int = -1
    n_threads: int | None = None
    repack: bool = True
    parallel: int = DEFAULT_PARALLEL
    groups: int | None = None
    n_ctx: int = DEFAULT_CONTEXT
    n_batch: int = DEFAULT_BATCH
    n_ubatch: int | None = None
    step_tokens: int | None = None
    queue: int | None = None


class About(msgspec.Struct, frozen=True):
    """An engine that is ready.

    Attributes:
        model: architecture, size and type of weights.
        stages: which device holds how many layers.
        capacity: requests at once, context of each, cost of the KV cache, in words.
        n_ctx: tokens of context of one request.
        parallel: requests at once.
    """

    model: str
    stages: tuple[Stage, ...]
    capacity: str
    n_ctx: int
    parallel: int


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


class Open(msgspec.Struct, tag="open"):
    """The first message: make this engine."""

    spec: EngineSpec


class Submit(msgspec.Struct, tag="submit"):
    """Take a prompt in, text or tokens."""

    job: int
    prompt: str | tuple[int, ...]
    request: Request


class Cancel(msgspec.Struct, tag="cancel"):
    """End a job; one that has ended stays as it is."""

    job: int


class AskMetrics(msgspec.Struct, tag="ask-metrics"):
    """What has the engine done so far?"""

    question: int


class Loading(msgspec.Struct, tag="loading"):
    """So much of the model is loaded, 0 to 1."""

    share: float


class Ready(msgspec.Struct, tag="ready"):
    """The engine is there."""

    about: About


class Accepted(msgspec.Struct, tag="accepted"):
    """A job was taken in. Its first events may have come before this."""

    job: int


class Text(msgspec.Struct, tag="text"):
    """The next piece of a job."""

    job: int
    piece: Piece


class Done(msgspec.Struct, tag="done"):
    """The end of a job that is done or cancelled."""

    job: int
    outcome: Outcome


class Failed(msgspec.Struct, tag="failed"):
    """The end of a job that failed or was not taken in; job -1: the engine could not be made."""

    job: int
    facts: ErrorFacts


class Metrics(msgspec.Struct, tag="metrics"):
    """The answer to AskMetrics."""

    question: int
    metrics: EngineMetrics


FromClient = Open | Submit | Cancel | AskMetrics
FromEngine = Loading | Ready | Accepted | Text | Done | Failed | Metrics
