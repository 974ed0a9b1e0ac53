"""What a scheduler keeps to, what it plans, what comes back: values. Counts are tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic

from ringline.engine.slots import TaskT
from ringline.engine.task import TaskState
from ringline.errors import CallerError

__all__ = ["Limits", "Run", "Step", "Verdict"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a scheduler has to keep to.

    Attributes:
        slots: number of slots of each group.
        n_ctx: most tokens of one slot.
        budget: most tokens of a step in which a task is decoding.
        prompt_budget: most tokens of a step of prompts alone: nobody waits for its next token.
        piece: most tokens that are computed at once; 0: a step is one piece.
        reuse: whether what a slot's cache holds may be used again.
        queue: most tasks that wait for a slot; None for any number.
    """

    slots: tuple[int, ...]
    n_ctx: int
    budget: int
    prompt_budget: int
    piece: int = 0
    reuse: bool = True
    queue: int | None = None

    def __post_init__(self) -> None:
        if not self.slots or min(self.slots) < 1:
            raise CallerError(f"slots of the groups are {self.slots}: each group needs at least 1")
        room = min(self.budget, self.prompt_budget, self.piece or self.budget)
        if room < max(self.slots):
            raise CallerError(
                f"a step of {room} tokens has no room for the {max(self.slots)} slots of a group: "
                "raise -b and -ub, or lower --parallel"
            )


@dataclass(frozen=True, slots=True)
class Run(Generic[TaskT]):
    """Consecutive tokens of one slot in a step.

    Attributes:
        slot: number of the slot, which is the number of the sequence.
        task: whose tokens.
        tokens: at least one.
        position: position of the first.
        logits: whether the last one's logits are wanted.
    """

    slot: int
    task: TaskT
    tokens: Sequence[int]
    position: int
    logits: bool


@dataclass(frozen=True, slots=True, eq=False)
class Step(Generic[TaskT]):
    """One decode of a group.

    Attributes:
        group: number of the group.
        trims: (slot, position) pairs: positions from there on are forgotten before the decode.
        runs: what is decoded, by slot.
    """

    group: int
    trims: tuple[tuple[int, int], ...]
    runs: tuple[Run[TaskT], ...]

    @property
    def n_tokens(self) -> int:
        """Tokens of the batch."""
        return sum(len(run.tokens) for run in self.runs)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a task's row of logits.

    Attributes:
        token: the token that was chosen; -1: none, or one that ends the text.
        end: the state the task ends in; None: it goes on and `token` is decoded next.
    """

    token: int = -1
    end: TaskState | None = None
