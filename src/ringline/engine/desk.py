"""The desk between those who submit jobs and the groups that decode: one lock, and what it guards.

Events of a job are told without the lock. Their order holds all the same: while a job is in a step,
only the group's thread tells anything of it; when it is not, whoever ends it under the lock tells
its end, and nobody can tell anything after that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence

from ringline.engine.job import Job
from ringline.engine.metrics import EngineMetrics, GroupMetrics, Meter, SlotMetrics
from ringline.engine.scheduler import Scheduler
from ringline.engine.slots import Slot
from ringline.engine.step import Limits, Step, Verdict
from ringline.engine.task import TaskState
from ringline.errors import BusyError, RinglineError

__all__ = ["Desk"]


class Desk:
    """Jobs come in here, groups fetch their steps here and bring back what came of them."""

    def __init__(self, limits: Limits) -> None:
        # Guards all below. Groups sleep on it; it is never held across a decode or a sink.
        self._changed = threading.Condition()
        self._scheduler = Scheduler[Job](limits)
        self._meter = Meter([GroupMetrics(count) for count in limits.slots])
        self._steps: dict[int, Step[Job]] = {}
        self._cause: RinglineError | None = None

    @property
    def cause(self) -> RinglineError | None:
        """Why the engine takes no jobs any more; None while it does."""
        return self._cause

    def submit(self, job: Job) -> None:
        """Take a job in.

        Raises:
            CallerError: its prompt does not fit. BusyError: the queue is full.
            RinglineError: why the engine has ended.
        """
        with self._changed:
            if self._cause is not None:
                raise self._cause
            try:
                self._scheduler.submit(job)
            except BusyError:
                self._meter.rejected += 1
                raise
            self._meter.submitted += 1
            self._changed.notify_all()

    def cancel(self, job: Job) -> None:
        """End a job, at the latest with the step under way."""
        with self._changed:
            ended = self._ended(self._scheduler.cancel(job))
            self._changed.notify_all()  # its slot may go to one that waits, in another group
        self._tell(ended)

    def next_step(self, group: int) -> Step[Job] | None:
        """Wait for a step of a group; None: the engine has ended."""
        with self._changed:
            while self._cause is None:
                step = self._scheduler.plan(group)
                if step is not None:
                    self._begin(step)
                    return step
                self._changed.wait()
            return None

    def done(self, step: Step[Job], verdicts: Mapping[Job, Verdict]) -> None:
        """A step was decoded, and its rows were sampled."""
        with self._changed:
            self._end_step(step)
            self._count_tokens(step, verdicts)
            ended = self._ended(self._scheduler.commit(step, verdicts))
            if ended:
                self._changed.notify_all()
        self._tell(ended)

    def failed(self, step: Step[Job], cause: RinglineError) -> None:
        """A step failed: all jobs end with its cause, and no more are taken."""
        with self._changed:
            self._end_step(step)
            if self._cause is None:
                self._meter.engine_ends(cause)
            ended = self._stop(cause, step)
        self._tell(ended)

    def close(self, cause: RinglineError) -> None:
        """End all jobs; those in a step under way end with it."""
        with self._changed:
            ended = self._stop(cause, None)
        self._tell(ended)

    def metrics(self) -> EngineMetrics:
        """All numbers as they are now."""
        with self._changed:
            groups = self._scheduler.groups
            busy = [len(group.busy) for group in groups]
            slots = [_look(group.index, slot) for group in groups for slot in group.slots]
            return self._meter.look(len(self._scheduler.queue), busy, slots)

    def steps(self) -> list[Step[Job]]:
        """The steps under way."""
        with self._changed:
            return list(self._steps.values())

    def _begin(self, step: Step[Job]) -> None:
        self._steps[step.group] = step
        self._meter.step_begins(step.group)
        for run in step.runs:
            run.task.clock.started = run.task.clock.started or time.monotonic()

    def _end_step(self, step: Step[Job]) -> None:
        del self._steps[step.group]
        self._meter.step_ends(step.group)

    def _count_tokens(self, step: Step[Job], verdicts: Mapping[Job, Verdict]) -> None:
        prompts = [run for run in step.runs if run.task.state is TaskState.PROMPT]
        self._meter.prompt_tokens += sum(len(run.tokens) for run in prompts)
        self._meter.generated_tokens += sum(verdict.token >= 0 for verdict in verdicts.values())

    def _stop(self, cause: RinglineError, step: Step[Job] | None) -> list[Job]:
        self._cause = self._cause or cause
        ended = self._ended(self._scheduler.fail(step))
        self._changed.notify_all()
        return ended

    def _ended(self, jobs: list[Job]) -> list[Job]:
        """Count jobs that have just ended."""
        for job in jobs:
            job.clock.ended = time.monotonic()
            timings = job.clock.timings(len(job.writer.ids))
            self._meter.job_ends(job.state, timings, job.n_reused)
        return jobs

    def _tell(self, ended: Sequence[Job]) -> None:
        for job in ended:
            job.finish(self._cause)


def _look(group: int, slot: Slot[Job]) -> SlotMetrics:
    job, n_cached = slot.task, len(slot.cached)
    if job is None:
        return SlotMetrics(group, slot.index, "idle", n_cached=n_cached)
    return SlotMetrics(
        group,
        slot.index,
        str(job.state),
        job=job.number + 1,
        n_prompt=len(job.prompt),
        n_done=len(job.writer.ids),
        n_cached=n_cached,
        n_remain=max(-1, job.request.n_predict - len(job.writer.ids)),
    )
