"""What an engine has done so far: counts, latencies, how busy each group was. Seconds and tokens.

Counters only grow, so the difference of two looks is what happened between them.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from ringline.engine.events import Timings
from ringline.engine.task import TaskState

__all__ = ["EngineMetrics", "GroupMetrics", "Meter", "Summary"]

#: the latencies of so many jobs that ended last are summed up.
WINDOW = 1000


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

    @property
    def busy_share(self) -> list[float]:
        """For each group, the share of the uptime that it spent in steps."""
        return [group.busy_seconds / self.uptime if self.uptime else 0.0 for group in self.groups]


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
        if timings.per_token:
            self._per_token.append(timings.per_token)

    def look(self, queued: int, busy_slots: list[int]) -> EngineMetrics:
        """All numbers as they are now.

        Args:
            queued: jobs that wait.
            busy_slots: of each group.
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
        )
