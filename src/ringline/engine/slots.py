"""Slots: places in a group for one task each, and what the KV cache of each still holds. Pure.

A slot is a sequence of its group's context. When its task ends the cache is kept, so that a prompt
that begins alike need not be decoded from its first token. Counts are tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ringline.engine.task import Task, TaskState

__all__ = ["Place", "Slot", "SlotGroup", "TaskT", "choose_slot", "common_prefix"]

TaskT = TypeVar("TaskT", bound=Task)

#: tokens that are compared at once.
_RUN: Final = 256


@dataclass(slots=True, eq=False)
class Slot(Generic[TaskT]):
    """One sequence of a context.

    Attributes:
        index: the sequence's number.
        task: who has it; None where it is free.
        cached: tokens in its KV cache, by position.
        stale: the context still holds positions after `cached`; they go before the next decode.
        freed_at: when it was last freed, on a clock that counts such events; 0: never used.
    """

    index: int
    task: TaskT | None = None
    cached: list[int] = field(default_factory=list)
    stale: bool = False
    freed_at: int = 0

    def common(self, prompt: Sequence[int]) -> int:
        """How many tokens of the prompt need not be decoded: all but one at the most.

        The last one is decoded again even if the cache has it: its logits are needed.
        """
        return min(common_prefix(self.cached, prompt), len(prompt) - 1)

    def take(self, task: TaskT, n_kept: int) -> None:
        """Give the slot to a task that uses the first `n_kept` tokens of its cache."""
        task.enter(TaskState.PROMPT)
        task.n_reused = n_kept
        self.task = task
        self.stale = self.stale or n_kept < len(self.cached)
        del self.cached[n_kept:]


@dataclass(slots=True)
class SlotGroup(Generic[TaskT]):
    """The slots of one context."""

    index: int
    slots: list[Slot[TaskT]]

    @property
    def busy(self) -> list[Slot[TaskT]]:
        """Slots that have a task."""
        return [slot for slot in self.slots if slot.task is not None]

    @property
    def free(self) -> list[Slot[TaskT]]:
        """Slots that have none."""
        return [slot for slot in self.slots if slot.task is None]

    @property
    def load(self) -> tuple[int, int, int]:
        """Orders groups: the one with fewest tasks, then fewest tokens of context, then first."""
        busy = self.busy
        n_tokens = sum(max(len(s.cached), len(s.task.prompt)) for s in busy if s.task is not None)
        return len(busy), n_tokens, self.index


def common_prefix(first: Sequence[int], second: Sequence[int]) -> int:
    """Length of the longest common prefix.

    Runs are compared at once, at the speed of C: this is done for every free slot, under the lock
    that all groups need.
    """
    most = min(len(first), len(second))
    for begin in range(0, most, _RUN):
        a, b = tuple(first[begin : begin + _RUN]), tuple(second[begin : begin + _RUN])
        if a != b:
            pairs = zip(a, b, strict=False)
            alike = next((i for i, (x, y) in enumerate(pairs) if x != y), _RUN)
            return min(most, begin + alike)
    return most


@dataclass(frozen=True, slots=True)
class Place(Generic[TaskT]):
    """Where a task may go: a free slot, its group, and how much of its cache the task can use."""

    group: SlotGroup[TaskT]
    slot: Slot[TaskT]
    n_kept: int


def choose_slot(
    groups: Sequence[SlotGroup[TaskT]], task: TaskT, *, reuse: bool
) -> Place[TaskT] | None:
    """Choose where a task goes; None where every slot is taken.

    The group with room is preferred, and in it the cache that shares most with the prompt, else one
    that nobody has asked for long, beside slots that are taken. A fuller group is chosen only where
    its cache saves half of the prompt more: a turn of a chat goes back to where the turns before it
    are.
    """
    places = [_best(group, task, reuse) for group in groups if group.free]
    if not places:
        return None
    emptiest = min(places, key=lambda place: place.group.load)
    saving = max(places, key=lambda place: place.n_kept)
    worth_it = 2 * (saving.n_kept - emptiest.n_kept) >= len(task.prompt)
    return saving if worth_it else emptiest


def _best(group: SlotGroup[TaskT], task: TaskT, reuse: bool) -> Place[TaskT]:
    kept = {slot.index: slot.common(task.prompt) if reuse else 0 for slot in group.free}
    most = max(kept.values())
    best = _oldest_neighbour(group, [slot for slot in group.free if kept[slot.index] == most])
    return Place(group, best, most)


def _oldest_neighbour(group: SlotGroup[TaskT], choice: Sequence[Slot[TaskT]]) -> Slot[TaskT]:
    """Of the longer unused half of these slots, the one with most neighbours that are taken.

    libllama computes a step in as many pieces as there are runs of neighbours among its sequences
    (Engine._open_groups), so few texts in many slots should lie together. The other half is left
    alone, or the same few caches would be overwritten again and again, and no chat would find its
    own when it comes back.
    """
    taken = {slot.index for slot in group.busy}
    oldest = sorted(choice, key=lambda slot: (slot.freed_at, slot.index))
    half = oldest[: (len(oldest) + 1) // 2]
    return max(half, key=lambda slot: len(taken & {slot.index - 1, slot.index + 1}))
