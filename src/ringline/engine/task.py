"""What the scheduler knows of a job: its prompt, its state, the token to decode next. Pure.

    queued -> prompt -> decoding -> done
       |         |          |
       +---------+----------+-----> cancelled, failed

A prompt alone (n_predict 0), or one whose first token ends the text, goes from prompt to done.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

__all__ = ["Task", "TaskState"]


class TaskState(StrEnum):
    """Where a task is in its life; the last three are ends."""

    QUEUED = "queued"
    PROMPT = "prompt"
    DECODING = "decoding"
    DONE = "done"
    CANCELLED = "cancelled"
    FAILED = "failed"

    @property
    def ended(self) -> bool:
        """Whether nothing comes after it."""
        return not _NEXT[self]


_ENDS = frozenset({TaskState.CANCELLED, TaskState.FAILED})
_NEXT: dict[TaskState, frozenset[TaskState]] = {
    TaskState.QUEUED: _ENDS | {TaskState.PROMPT},
    TaskState.PROMPT: _ENDS | {TaskState.DECODING, TaskState.DONE},
    TaskState.DECODING: _ENDS | {TaskState.DONE},
    TaskState.DONE: frozenset(),
    TaskState.CANCELLED: frozenset(),
    TaskState.FAILED: frozenset(),
}


class Task:
    """One prompt on its way through the slots; compared by identity.

    Attributes:
        prompt: tokens, at least one.
        state: where it is in its life.
        number: its place in the order of arrival; the scheduler sets it.
        token: the token sampled last, which is decoded next; meaningless before that.
        n_reused: tokens of the prompt that a slot's cache held already.
        end_wanted: what it ends in when the step that decodes it is over; None: it goes on.
    """

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = tuple(prompt)
        self.state = TaskState.QUEUED
        self.number = -1
        self.token = -1
        self.n_reused = 0
        self.end_wanted: TaskState | None = None

    def enter(self, state: TaskState) -> None:
        """Go to the next state.

        Raises:
            ValueError: that state does not follow the present one; a task ends exactly once.
        """
        if state not in _NEXT[self.state]:
            raise ValueError(f"a task that is {self.state} cannot become {state}")
        self.state = state
