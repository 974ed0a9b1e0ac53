"""Closed-loop streams: each asks again as soon as its last request has ended. Seconds and tokens.

What asks is the same for every server that is measured; what answers is a Service. The first
request of each stream is shorter than the others, by another length for each, so that their phases
differ and neither prompts nor ends come all at once. Then the window begins: rates count the tokens
in it.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ringline.engine.metrics import Summary
from ringline.errors import PeerError

__all__ = ["Figures", "Load", "Request", "Service", "run_streams"]

#: seconds without any request ending after which a run is given up.
_PATIENCE: Final = 300.0
#: longest wait between two looks at what the streams have done.
_LOOK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What a stream does, and for how long it is watched.

    Attributes:
        n_prompt: tokens of each prompt; they are drawn at random, so that no two begin alike.
        n_predict: tokens of each answer.
        seconds: least length of the window.
        requests: so many requests a stream, on the average, begin and end in the window.
    """

    n_prompt: int = 128
    n_predict: int = 64
    seconds: float = 5.0
    requests: int = 1


@dataclass(slots=True, eq=False)
class Request:
    """One request, on the clock of time.monotonic().

    Attributes:
        asked: when it was.
        tokens: when each token came; a service fills it.
        ended: when the last one had come; 0 before that, and where it was stopped.
    """

    asked: float
    tokens: list[float] = field(default_factory=list)
    ended: float = 0.0

    @property
    def ttft(self) -> float:
        """Seconds to the first token."""
        return self.tokens[0] - self.asked

    @property
    def tpot(self) -> float:
        """Mean seconds of each token after the first."""
        return (self.tokens[-1] - self.tokens[0]) / (len(self.tokens) - 1)


class Service(Protocol):
    """Something that answers prompts.

    Attributes:
        n_vocab: tokens are numbers below this.
        live: whether tokens are noted when they come; if not, when their request has ended.
    """

    n_vocab: int
    live: bool

    def ask(self, prompt: Sequence[int], n_predict: int, request: Request) -> bool:
        """Wait for an answer of `n_predict` tokens; False: it was stopped before its end."""

    def stop(self) -> None:
        """End all requests under way, and answer no more."""


@dataclass(frozen=True, slots=True)
class Figures:
    """What happened in the window.

    Attributes:
        tok_s: tokens generated in a second.
        ttft: seconds to the first token, of requests that began and ended in it.
        tpot: mean seconds of each token after the first, of the same ones.
        busy: what the meters gained in a second.
    """

    tok_s: float
    ttft: Summary
    tpot: Summary
    busy: tuple[float, ...] = ()

    @classmethod
    def of(cls, requests: Sequence[Request], begin: float, end: float) -> Figures:
        """Sum up what lies between two moments."""
        count = sum(begin <= moment < end for request in requests for moment in request.tokens)
        inside = [r for r in requests if begin <= r.asked and r.tokens and 0 < r.ended < end]
        return cls(
            count / (end - begin),
            Summary.of(request.ttft for request in inside),
            Summary.of(request.tpot for request in inside if len(request.tokens) > 1),
        )


def run_streams(
    service: Service,
    n_streams: int,
    load: Load,
    *,
    seed: int = 0,
    meters: Callable[[], Sequence[float]] = tuple,
) -> Figures:
    """Let streams ask until the window is over; the service is stopped then.

    Args:
        service: answers.
        n_streams: how many requests are under way at any time.
        load: what they ask, and how long the window is.
        seed: of the prompts.
        meters: numbers that only grow, such as seconds of processors; read at both ends.

    Raises:
        RinglineError: the service failed, or no request ended for a long time.
    """
    streams = _Streams(service, n_streams, load, seed)
    try:
        streams.wait(lambda: streams.n_warm == n_streams)
        begin, before = time.monotonic(), meters()
        streams.wait(lambda: streams.is_enough(begin))
        end, after = time.monotonic(), meters()
        if not service.live:  # what was under way at the end counts too, at its usual pace
            open_ones = streams.under_way()
            streams.wait(lambda: all(request.ended for request in open_ones))
    finally:
        streams.close()
    busy = [(now - then) / (end - begin) for now, then in zip(after, before, strict=True)]
    figures = Figures.of(streams.requests, begin, end)
    return Figures(figures.tok_s, figures.ttft, figures.tpot, tuple(busy))


class _Streams:
    """The threads of all streams, and what they have asked so far."""

    def __init__(self, service: Service, n_streams: int, load: Load, seed: int) -> None:
        self.requests: list[Request] = []
        self.n_warm = 0
        self._service = service
        self._n_streams = n_streams
        self._load = load
        # Guards all of the state; streams tell here that a request has ended.
        self._changed = threading.Condition()
        self._stopped = False
        self._error: BaseException | None = None
        self._threads = [
            threading.Thread(target=self._run, args=(index, seed), name=f"stream-{index}")
            for index in range(n_streams)
        ]
        for thread in self._threads:
            thread.start()

    def wait(self, reached: Callable[[], bool]) -> None:
        """Wait until a state is reached.

        Raises:
            RinglineError: a request failed, or none ended for a long time.
        """
        with self._changed:
            n_ended, moved = -1, time.monotonic()
            while not reached():
                if self._error is not None:
                    raise self._error
                now, n_now = time.monotonic(), sum(request.ended > 0 for request in self.requests)
                if n_now != n_ended:
                    n_ended, moved = n_now, now
                if now - moved > _PATIENCE:
                    raise PeerError(f"no request ended for {_PATIENCE:g} s")
                self._changed.wait(_LOOK)

    def is_enough(self, begin: float) -> bool:
        """Whether a window that began then may end; called while waiting."""
        wanted = self._load.requests * self._n_streams
        n_inside = sum(request.asked >= begin and request.ended > 0 for request in self.requests)
        return n_inside >= wanted and time.monotonic() - begin >= self._load.seconds

    def under_way(self) -> list[Request]:
        """The requests that have not ended."""
        with self._changed:
            return [request for request in self.requests if not request.ended]

    def close(self) -> None:
        """Stop the service and wait for the threads."""
        with self._changed:
            self._stopped = True
        self._service.stop()
        for thread in self._threads:
            thread.join()

    def _run(self, index: int, seed: int) -> None:
        draw = random.Random(seed * 1000 + index)
        first = math.ceil((index + 1) * self._load.n_predict / self._n_streams)
        try:
            if self._ask(draw, first):
                with self._changed:
                    self.n_warm += 1
                    self._changed.notify_all()
                while self._ask(draw, self._load.n_predict):
                    pass
        except BaseException as error:  # told by wait(), in the thread that measures
            with self._changed:
                self._error = self._error or error
                self._changed.notify_all()

    def _ask(self, draw: random.Random, n_predict: int) -> bool:
        """Ask once; whether the stream goes on."""
        prompt = draw.choices(range(self._service.n_vocab), k=self._load.n_prompt)
        request = Request(time.monotonic())
        with self._changed:
            if self._stopped:
                return False
            self.requests.append(request)
        if not self._service.ask(prompt, n_predict, request):
            return False
        with self._changed:
            request.ended = time.monotonic()
            self._changed.notify_all()
        return True
