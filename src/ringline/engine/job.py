"""A request, and the job that it becomes: what the scheduler sees of it, and what its caller does.

Times are seconds on time.monotonic().
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from ringline.engine.events import Event, Failure, Outcome, Piece, Sink, Stream, Timings
from ringline.engine.generation import StopReason
from ringline.engine.task import Task, TaskState
from ringline.engine.writer import Vocabulary, Writer
from ringline.errors import CallerError, RinglineError
from ringline.llama.sampler import Sampler, SamplingParams

__all__ = ["MOST_LOGPROBS", "Clock", "Job", "Request"]

_log = logging.getLogger(__name__)

#: most of the likeliest tokens that are named for each place.
MOST_LOGPROBS = 100


@dataclass(frozen=True, slots=True)
class Request:
    """What is wanted of a prompt.

    Attributes:
        n_predict: most tokens to generate; 0 decodes the prompt alone, a negative number goes on
            until the text ends or the context is full.
        sampling: how tokens are chosen; greedy by default.
        stop: strings that end the text and are not shown.
        logprobs: None: not wanted; else how many of the likeliest tokens are named with each.
        special: whether control tokens are shown in the text.
    """

    n_predict: int = -1
    sampling: SamplingParams = field(default_factory=lambda: SamplingParams(temperature=0.0))
    stop: tuple[str, ...] = ()
    logprobs: int | None = None
    special: bool = False

    def __post_init__(self) -> None:
        if self.logprobs is not None and not 0 <= self.logprobs <= MOST_LOGPROBS:
            raise CallerError(f"logprobs is {self.logprobs}: it must be from 0 to {MOST_LOGPROBS}")
        if "" in self.stop:
            raise CallerError("a stop string is empty: it would stop every text at once")


@dataclass(slots=True)
class Clock:
    """When things happened to a job; 0 for what has not."""

    arrived: float = field(default_factory=time.monotonic)
    started: float = 0.0
    first: float = 0.0
    last: float = 0.0
    ended: float = 0.0

    def token(self) -> None:
        """A token was chosen."""
        self.last = time.monotonic()
        self.first = self.first or self.last

    def timings(self, n_tokens: int) -> Timings:
        """The spans between, for a job of so many tokens."""
        return Timings(
            queued=(self.started or self.ended) - self.arrived,
            first_token=self.first - self.arrived if self.first else 0.0,
            total=self.ended - self.arrived,
            per_token=(self.last - self.first) / (n_tokens - 1) if n_tokens > 1 else 0.0,
        )


class Job(Task):
    """A request under way. Iterate over it for pieces of text; any thread may use it.

    Attributes:
        request: what was asked for.
        prompt: its tokens.
        state: queued, prompt, decoding, done, cancelled or failed.
    """

    def __init__(
        self,
        prompt: Sequence[int],
        request: Request,
        *,
        vocabulary: Vocabulary,
        sampler: Sampler,
        sink: Sink | None,
        cancel: Callable[[Job], None],
    ) -> None:
        super().__init__(prompt)
        self.request = request
        self.sampler = sampler
        self.clock = Clock()
        #: why this job alone failed; a failed step fails all of them.
        self.failure: RinglineError | None = None
        self.writer = Writer(
            vocabulary, n_predict=request.n_predict, stop=request.stop, special=request.special
        )
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
        self._cancel(self)

    def tell(self, event: Event) -> None:
        """Pass an event on; for the engine only."""
        try:
            self._sink(event)
        except Exception:  # whoever listens here must not stop the jobs of the others
            _log.exception("what takes the events of a job failed")

    def finish(self, cause: RinglineError | None) -> None:
        """Tell the end, whose state was entered before; for the engine only, once.

        Args:
            cause: why all jobs failed, if they did.
        """
        self.sampler.close()
        if self.state is TaskState.FAILED:
            error = self.failure or cause
            assert error is not None
            self.tell(Failure(error))
            return
        if self.state is TaskState.CANCELLED:
            self.writer.end(StopReason.CANCELLED)
        self.tell(self._outcome())

    def _outcome(self) -> Outcome:
        writer = self.writer
        assert writer.stop_reason is not None
        return Outcome(
            text=writer.text,
            ids=tuple(writer.ids),
            stop_reason=writer.stop_reason,
            stop=writer.stop,
            n_prompt=len(self.prompt),
            n_reused=self.n_reused,
            timings=self.clock.timings(len(writer.ids)),
            logprobs=tuple(writer.logprobs),
        )
