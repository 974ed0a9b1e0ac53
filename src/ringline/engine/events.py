"""What a job tells whoever waits for it: pieces of text, and at the end one outcome or failure.

Times are seconds.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from ringline.engine.generation import StopReason
from ringline.errors import CallerError, RinglineError

__all__ = ["Event", "Failure", "Outcome", "Piece", "Sink", "Stream", "Timings", "TokenLogprob"]


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """How likely a token was, before any sampling parameter is applied.

    Attributes:
        token: its number.
        piece: its bytes, which need not be whole characters.
        logprob: natural logarithm of its probability.
        top: the likeliest tokens at this place, the likeliest first; their own `top` is empty.
    """

    token: int
    piece: bytes
    logprob: float
    top: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Piece:
    """Text that became whole, and the tokens that made it; never empty of both.

    Attributes:
        text: it never ends in half a character, nor in what may become a stop string.
        ids: the tokens.
        logprobs: one for each token, if they were asked for.
    """

    text: str
    ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()

    @staticmethod
    def joined(first: Piece | None, second: Piece | None) -> Piece | None:
        """Two pieces as one, where there are two."""
        if first is None or second is None:
            return first or second
        ids, logprobs = first.ids + second.ids, first.logprobs + second.logprobs
        return Piece(first.text + second.text, ids, logprobs)


@dataclass(frozen=True, slots=True)
class Timings:
    """Where the time of a job went, from its arrival.

    Attributes:
        queued: until it had a slot.
        first_token: until its first token was chosen (TTFT); 0 where there was none.
        total: until it ended.
        per_token: mean time of each token after the first (TPOT); 0 where there was none.
    """

    queued: float = 0.0
    first_token: float = 0.0
    total: float = 0.0
    per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A job that is done, or was cancelled.

    Attributes:
        text: all of it, without the stop string.
        ids: all tokens that were generated, without the one that ended the text; those of the stop
            string are among them.
        stop_reason: why it ended.
        stop: the stop string that ended it, or None.
        n_prompt: tokens of the prompt.
        n_reused: those of them that a slot's cache held already.
        timings: where the time went.
        logprobs: one for each token of the text, if they were asked for.
    """

    text: str
    ids: tuple[int, ...]
    stop_reason: StopReason
    stop: str | None = None
    n_prompt: int = 0
    n_reused: int = 0
    timings: Timings = field(default_factory=Timings)
    logprobs: tuple[TokenLogprob, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """A job that failed, and why."""

    error: RinglineError


#: the last event of a job is an Outcome or a Failure, and no other one is.
Event = Piece | Outcome | Failure
#: takes the events of one job, in order, on a thread of the engine: it must be quick, never raise.
Sink = Callable[[Event], None]


class Stream:
    """The events of one job, kept until they are asked for. `put` is a Sink; any thread may read.

    Pieces go to whoever iterates; the end goes to everybody who asks for it.
    """

    def __init__(self) -> None:
        self._pieces: queue.SimpleQueue[Piece | None] = queue.SimpleQueue()
        self._ended = threading.Event()
        self._end: Outcome | Failure | None = None

    def put(self, event: Event) -> None:
        """Take the next event."""
        if isinstance(event, Piece):
            self._pieces.put(event)
            return
        self._end = event
        self._ended.set()
        self._pieces.put(None)

    def __iter__(self) -> Iterator[Piece]:
        """Yield the pieces that nobody has had yet, until the job ends.

        Raises:
            RinglineError: why it failed.
        """
        while (piece := self._pieces.get()) is not None:
            yield piece
        self._pieces.put(None)  # for the next one who iterates
        self.result()

    def result(self, timeout: float | None = None) -> Outcome:
        """Wait for the end.

        Args:
            timeout: seconds; None: as long as it takes, which the nodes' deadlines bound.

        Raises:
            CallerError: it has not ended within `timeout`.
            RinglineError: why it failed.
        """
        if not self._ended.wait(timeout):
            raise CallerError(f"the job has not ended within {timeout:g} s")
        if isinstance(self._end, Failure):
            raise self._end.error
        assert self._end is not None
        return self._end

    @property
    def ended(self) -> bool:
        """Whether the last event has come."""
        return self._ended.is_set()
