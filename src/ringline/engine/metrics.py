"""What an engine has done so far: counts, latencies, how busy each group was. Seconds and tokens.

Counters only grow, so the difference of two looks is what happened between them.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Self

from ringline.engine.events import Timings
from ringline.engine.ring_metrics import EdgeMetrics, StageMetrics
from ringline.engine.task import TaskState
from ringline.errors import RemoteError, RinglineError

__all__ = [
    "EdgeMetrics",
    "EngineMetrics",
    "GroupMetrics",
    "Histogram",
    "Meter",
    "SlotMetrics",
    "StageMetrics",
    "Summary",
]

#: the latencies of so many jobs that ended last are summed up.
WINDOW = 1000
#: upper bounds of the buckets of TTFT and TPOT, seconds.
TTFT_BOUNDS: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250)
TPOT_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)


@dataclass(frozen=True, slots=True)
class Summary:
    """A number of values, their mean, median and 95th percentile; all 0 where there are none."""

    count: int = 0
    mean: float = 0.0
    median: float = 0.0
    p95: float = 0.0

    @classmethod
    def of(cls, values: Iterable[float]) -> Summary:
        """Sum values up; percentiles are values that occurred (nearest rank)."""
        ordered = sorted(values)
        if not ordered:
            return cls()
        count = len(ordered)

        def rank(share: float) -> float:
            return ordered[max(0, math.ceil(share * count) - 1)]

        return cls(count, sum(ordered) / count, rank(0.5), rank(0.95))


@dataclass(slots=True)
class Histogram:
    """Values in buckets; all of them, since the engine began.

    Attributes:
        bounds: upper bounds of the buckets, ascending; one more takes what is beyond.
        counts: values in each bucket, [len(bounds) + 1].
        total: sum of all values.
    """

    bounds: list[float]
    counts: list[int]
    total: float = 0.0

    @classmethod
    def over(cls, bounds: Sequence[float]) -> Self:
        """An empty one."""
        return cls(list(bounds), [0] * (len(bounds) + 1))

    def add(self, value: float) -> None:
        """Take a value in."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def copy(self) -> Histogram:
        """What it is now."""
        return Histogram(list(self.bounds), list(self.counts), self.total)


@dataclass(frozen=True, slots=True)
class SlotMetrics:
    """One slot.

    Attributes:
        group, index: which.
        state: idle, prompt or decoding.
        job: the number of its job, counted from 1 in the order of arrival; 0: there is none.
        n_prompt: tokens of the job's prompt.
        n_done: tokens that it has generated.
        n_cached: tokens that the slot's KV cache holds; an idle one keeps them for the next prompt.
        n_remain: tokens that its job may still generate; -1: any number, or there is none.
    """

    group: int
    index: int
    state: str
    job: int = 0
    n_prompt: int = 0
    n_done: int = 0
    n_cached: int = 0
    n_remain: int = -1


@dataclass(slots=True)
class GroupMetrics:
    """One group.

    Attributes:
        slots, busy_slots: how many there are, and have a job now.
        steps: decodes so far.
        busy_seconds: time in them.
        step_seconds: how long the step under way has been running; 0: there is none.
    """

    slots: int
    busy_slots: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    step_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """The whole engine, now.

    Attributes:
        uptime: seconds since it started.
        queued: jobs that wait for a slot.
        submitted: jobs taken in so far.
        ended: those that ended, by state: done, cancelled, failed.
        prompt_tokens: tokens of prompts that were decoded.
        reused_tokens: tokens of prompts that a slot's cache held already.
        generated_tokens: tokens chosen.
        ttft: seconds to the first token, of the jobs that ended last.
        tpot: mean seconds of each token after the first, of the same jobs.
        groups: one entry each.
        rejected: jobs that were not taken in, because the queue was full.
        ttft_histogram, tpot_histogram: the same latencies of all jobs that have ended.
        slots: of all groups.
        kv_used_tokens: what the caches of slots with a job hold.
        kv_total_tokens: what all caches can hold.
        stages, edges: of the ring, see ring_metrics.
        errors: how often what happened, by node ("coordinator": none is to blame) and class.
        embedded_tokens: tokens of texts that were embedded.
    """

    uptime: float
    queued: int
    submitted: int
    ended: dict[str, int]
    prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    ttft: Summary
    tpot: Summary
    groups: list[GroupMetrics]
    rejected: int = 0
    ttft_histogram: Histogram = field(default_factory=lambda: Histogram.over(TTFT_BOUNDS))
    tpot_histogram: Histogram = field(default_factory=lambda: Histogram.over(TPOT_BOUNDS))
    slots: list[SlotMetrics] = field(default_factory=list)
    kv_used_tokens: int = 0
    kv_total_tokens: int = 0
    stages: list[StageMetrics] = field(default_factory=list)
    edges: list[EdgeMetrics] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    embedded_tokens: int = 0

    @property
    def busy_share(self) -> list[float]:
        """For each group, the share of the uptime that it spent in steps."""
        return [group.busy_seconds / self.uptime if self.uptime else 0.0 for group in self.groups]


def blame(error: RinglineError) -> tuple[str, str]:
    """Where an error is counted: the node it came from, or "coordinator", and its class."""
    peer = error.peer if isinstance(error, RemoteError) else ""
    return peer or "coordinator", type(error).__name__


@dataclass(slots=True)
class Meter:
    """Counts. Not for two threads at once: the engine's lock guards it."""

    groups: list[GroupMetrics]
    born: float = field(default_factory=time.monotonic)
    submitted: int = 0
    ended: dict[str, int] = field(default_factory=dict)
    prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0
    rejected: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    _ttft: Histogram = field(default_factory=lambda: Histogram.over(TTFT_BOUNDS))
    _tpot: Histogram = field(default_factory=lambda: Histogram.over(TPOT_BOUNDS))
    _step_began: dict[int, float] = field(default_factory=dict)
    _first_tokens: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    _per_token: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def step_begins(self, group: int) -> None:
        """A group begins to decode."""
        self._step_began[group] = time.monotonic()

    def step_ends(self, group: int) -> None:
        """The group has decoded, or failed to."""
        self.groups[group].busy_seconds += time.monotonic() - self._step_began.pop(group)
        self.groups[group].steps += 1

    def job_ends(self, state: TaskState, timings: Timings, n_reused: int) -> None:
        """A job ended; so many tokens of its prompt were in a cache already."""
        self.ended[state] = self.ended.get(state, 0) + 1
        self.reused_tokens += n_reused
        if timings.first_token:
            self._first_tokens.append(timings.first_token)
            self._ttft.add(timings.first_token)
        if timings.per_token:
            self._per_token.append(timings.per_token)
            self._tpot.add(timings.per_token)

    def engine_ends(self, cause: RinglineError) -> None:
        """A step failed, and with it the engine."""
        key = " ".join(blame(cause))
        self.errors[key] = self.errors.get(key, 0) + 1

    def look(
        self, queued: int, busy_slots: list[int], slots: Sequence[SlotMetrics] = ()
    ) -> EngineMetrics:
        """All numbers as they are now, but for those of the ring.

        Args:
            queued: jobs that wait.
            busy_slots: of each group.
            slots: all slots.
        """
        now = time.monotonic()
        groups = [
            GroupMetrics(g.slots, busy, g.steps, g.busy_seconds, now - self._step_began.get(i, now))
            for i, (g, busy) in enumerate(zip(self.groups, busy_slots, strict=True))
        ]
        return EngineMetrics(
            uptime=now - self.born,
            queued=queued,
            submitted=self.submitted,
            ended=dict(self.ended),
            prompt_tokens=self.prompt_tokens,
            reused_tokens=self.reused_tokens,
            generated_tokens=self.generated_tokens,
            ttft=Summary.of(self._first_tokens),
            tpot=Summary.of(self._per_token),
            groups=groups,
            rejected=self.rejected,
            ttft_histogram=self._ttft.copy(),
            tpot_histogram=self._tpot.copy(),
            slots=list(slots),
            kv_used_tokens=sum(slot.n_cached for slot in slots if slot.job),
            errors=dict(self.errors),
        )
