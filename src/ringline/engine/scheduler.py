"""Which tokens a group decodes next: pure, without libllama, a thread or a clock.

Each group has at most one step in flight: plan() makes it, commit() takes what came of it. A step
holds one token of every task that is decoding, and in what is left of its budget the prompts, in
chunks and in order of arrival. So a long prompt never stops the others; it only makes their steps
longer, by the budget at most. Counts are tokens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Generic

from ringline.engine.slots import Slot, SlotGroup, TaskT, choose_slot
from ringline.engine.step import Limits, Run, Step, Verdict
from ringline.engine.task import TaskState
from ringline.errors import BusyError, CallerError, PromptTooLongError

__all__ = ["Scheduler"]


class Scheduler(Generic[TaskT]):
    """Tasks, the queue of those that wait, and the slots of all groups.

    Methods that end tasks return those that ended; a task is returned once in its life. A task that
    a step in flight decodes never ends before that step's commit(): until then the group's thread
    alone has to do with it.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.groups = [
            SlotGroup[TaskT](number, [Slot(index) for index in range(count)])
            for number, count in enumerate(limits.slots)
        ]
        self.queue: deque[TaskT] = deque()
        self._steps: list[Step[TaskT] | None] = [None] * len(limits.slots)
        self._arrivals = 0
        self._frees = 0

    def submit(self, task: TaskT) -> None:
        """Take a task in; it gets a slot at once where one is free.

        Raises:
            CallerError: its prompt is empty. PromptTooLongError: longer than a slot's context.
            BusyError: the queue is full.
        """
        if not task.prompt:
            raise CallerError("the prompt is empty: it needs at least one token")
        if len(task.prompt) > self.limits.n_ctx:
            raise PromptTooLongError(
                f"the prompt has {len(task.prompt)} tokens and exceeds the available context size: "
                f"the context of one request holds {self.limits.n_ctx}"
            )
        task.number, self._arrivals = self._arrivals, self._arrivals + 1
        self.queue.append(task)
        self._admit()
        if self.limits.queue is not None and len(self.queue) > self.limits.queue:
            self.queue.pop()
            raise BusyError(f"{len(self.queue)} requests wait for a slot already: try again later")

    def cancel(self, task: TaskT) -> list[TaskT]:
        """End a task; one that a step in flight decodes ends with that step."""
        if task.state.ended:
            return []
        if task.state is TaskState.QUEUED:
            self.queue.remove(task)
            task.enter(TaskState.CANCELLED)
            return [task]
        ended = self._end_outside_steps([self._slot_of(task)], TaskState.CANCELLED)
        self._admit()
        return ended

    def plan(self, group: int) -> Step[TaskT] | None:
        """The next step of a group that has none in flight; None: it has nothing to do."""
        assert self._steps[group] is None
        busy = self.groups[group].busy
        runs = [self._next_token(slot) for slot in busy if _is_in(slot, TaskState.DECODING)]
        left = (self.limits.budget if runs else self.limits.prompt_budget) - len(runs)
        prompts = [slot for slot in busy if _is_in(slot, TaskState.PROMPT)]
        for slot in sorted(prompts, key=_arrival):
            if left > 0:
                runs.append(self._chunk(slot, left, beside=bool(runs)))
                # A prompt that goes on takes the rest of the step, whole pieces or not.
                left = left - len(runs[-1].tokens) if runs[-1].logits else 0
        if not runs:
            return None
        # libllama decodes neighbouring sequences together where they stand in ascending order.
        runs.sort(key=lambda run: run.slot)
        self._steps[group] = Step(group, self._trims(group, runs), tuple(runs))
        return self._steps[group]

    def commit(self, step: Step[TaskT], verdicts: Mapping[TaskT, Verdict]) -> list[TaskT]:
        """Take what came of a step.

        Args:
            step: the group's step in flight.
            verdicts: one for each run that wanted logits.
        """
        assert self._steps[step.group] is step
        self._steps[step.group] = None
        ended = []
        for run in step.runs:
            slot = self.groups[step.group].slots[run.slot]
            slot.cached.extend(run.tokens)
            state = self._state_after(run, verdicts)
            if state.ended:
                self._end(slot, state)
                ended.append(run.task)
        self._admit()
        return ended

    def fail(self, step: Step[TaskT] | None = None) -> list[TaskT]:
        """End all tasks; those in other groups' steps in flight end with these.

        Args:
            step: the step in flight that failed; what its group's caches hold is unknown now.
        """
        waiting = list(self.queue)
        self.queue.clear()
        for task in waiting:
            task.enter(TaskState.FAILED)
        if step is not None:
            self._steps[step.group] = None
            for slot in self.groups[step.group].slots:
                slot.cached.clear()
                slot.stale = True
        slots = [slot for group in self.groups for slot in group.busy]
        return waiting + self._end_outside_steps(slots, TaskState.FAILED)

    def _admit(self) -> None:
        """Give free slots to those that have waited longest."""
        while self.queue:
            place = choose_slot(self.groups, self.queue[0], reuse=self.limits.reuse)
            if place is None:
                return
            place.slot.take(self.queue.popleft(), place.n_kept)

    def _next_token(self, slot: Slot[TaskT]) -> Run[TaskT]:
        assert slot.task is not None
        return Run(slot.index, slot.task, (slot.task.token,), len(slot.cached), logits=True)

    def _chunk(self, slot: Slot[TaskT], n_most: int, *, beside: bool) -> Run[TaskT]:
        assert slot.task is not None
        done, prompt = len(slot.cached), slot.task.prompt
        if len(prompt) - done > n_most:
            n_most = self._whole_pieces(n_most, beside=beside)
        tokens = prompt[done : done + n_most]
        return Run(slot.index, slot.task, tokens, done, logits=done + len(tokens) == len(prompt))

    def _whole_pieces(self, n_tokens: int, *, beside: bool) -> int:
        """As many of these tokens as fill whole pieces, if that is one at least.

        ggml's attention on a CPU is several times slower for a piece of fewer than 64 rows. Beside
        other sequences libllama takes one token of each into the first piece, and then goes on with
        the longest.
        """
        first, piece = int(beside), self.limits.piece
        n_pieces = (n_tokens - first) // piece if piece else 0
        return n_pieces * piece + first if n_pieces else n_tokens

    def _trims(self, group: int, runs: Sequence[Run[TaskT]]) -> tuple[tuple[int, int], ...]:
        slots = [self.groups[group].slots[run.slot] for run in runs]
        trims = tuple((slot.index, len(slot.cached)) for slot in slots if slot.stale)
        for slot in slots:
            slot.stale = False
        return trims

    def _state_after(self, run: Run[TaskT], verdicts: Mapping[TaskT, Verdict]) -> TaskState:
        """The state of a run's task after its step; it is entered here unless it is an end."""
        task = run.task
        if task.end_wanted is not None:
            return task.end_wanted
        if not run.logits:
            return task.state
        verdict = verdicts[task]
        if verdict.end is not None:
            return verdict.end
        task.token = verdict.token
        if task.state is TaskState.PROMPT:
            task.enter(TaskState.DECODING)
        return task.state

    def _end_outside_steps(self, slots: Sequence[Slot[TaskT]], state: TaskState) -> list[TaskT]:
        """End the tasks of these slots, or see to it that the steps that decode them do."""
        in_flight = {run.task for step in self._steps if step for run in step.runs}
        ended = []
        for slot in slots:
            assert slot.task is not None
            if slot.task in in_flight:
                slot.task.end_wanted = slot.task.end_wanted or state
            else:
                ended.append(slot.task)
                self._end(slot, state)
        return ended

    def _end(self, slot: Slot[TaskT], state: TaskState) -> None:
        assert slot.task is not None
        slot.task.enter(state)
        slot.task = None
        self._frees += 1
        slot.freed_at = self._frees

    def _slot_of(self, task: TaskT) -> Slot[TaskT]:
        return next(slot for group in self.groups for slot in group.slots if slot.task is task)


def _is_in(slot: Slot[TaskT], state: TaskState) -> bool:
    return slot.task is not None and slot.task.state is state


def _arrival(slot: Slot[TaskT]) -> int:
    assert slot.task is not None
    return slot.task.number
