"""What many requests leave behind: memory of an API's process and of its engine's. Bytes."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ringline.bench.cpu import resident_bytes, tree
from ringline.bench.serve_services import ApiService
from ringline.bench.streams import Request

__all__ = ["MemoryLoad", "Sample", "measure_memory"]

_SAMPLES: Final = 50


@dataclass(frozen=True, slots=True)
class MemoryLoad:
    """What is asked.

    Attributes:
        requests: how many in all; 0: this is not measured.
        streams: how many at once.
        n_prompt, n_predict: tokens of each.
    """

    requests: int = 10_000
    streams: int = 32
    n_prompt: int = 2
    n_predict: int = 2


@dataclass(frozen=True, slots=True)
class Sample:
    """Memory after so many requests: of the HTTP process, of all below it."""

    requests: int
    http: int
    engine: int


def measure_memory(
    pid: int, service: ApiService, load: MemoryLoad, *, say: Callable[[str], None]
) -> list[Sample]:
    """Ask so many requests, and look at the memory now and then.

    Args:
        pid: of the HTTP process.
        service: how it is asked.
        load: what.
        say: gets a line of talk now and then.

    Raises:
        RinglineError: a request failed.
    """
    count = _Count(load.requests)
    threads = [
        threading.Thread(target=_ask, args=(service, load, count, index), name=f"asks-{index}")
        for index in range(load.streams)
    ]
    for thread in threads:
        thread.start()
    samples: list[Sample] = []
    every = max(1, load.requests // _SAMPLES)
    while any(thread.is_alive() for thread in threads):
        done = count.done
        if done >= every * (len(samples) + 1):
            samples.append(_sample(pid, done))
            if len(samples) % 10 == 0:
                say(f"{done} of {load.requests} requests")
        time.sleep(0.01)
    if count.error is not None:
        raise count.error
    return [*samples, _sample(pid, count.done)]


class _Count:
    """How many requests have been begun and are done; for all threads."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        # Guards the rest.
        self._lock = threading.Lock()
        self._begun = 0
        self.done = 0
        self.error: Exception | None = None

    def begin(self) -> bool:
        """Whether one more is wanted."""
        with self._lock:
            self._begun += 1
            return self.error is None and self._begun <= self._wanted

    def end(self, error: Exception | None = None) -> None:
        """One is done, or has failed."""
        with self._lock:
            self.done += error is None
            self.error = self.error or error


def _ask(service: ApiService, load: MemoryLoad, count: _Count, seed: int) -> None:
    draw = random.Random(seed)
    while count.begin():
        prompt = draw.choices(range(service.n_vocab), k=load.n_prompt)
        try:
            service.ask(prompt, load.n_predict, Request(time.monotonic()))
        except Exception as error:  # told by measure_memory, in the thread that measures
            count.end(error)
            return
        count.end()


def _sample(pid: int, requests: int) -> Sample:
    _, *below = tree(pid)
    return Sample(requests, resident_bytes(pid), sum(map(resident_bytes, below)))
