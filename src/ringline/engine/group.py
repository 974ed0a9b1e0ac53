"""A group: one context, the thread that drives it, and what libllama needs to be told.

Several groups keep several steps in flight: while one waits for its logits, another one's step is
computed on the stages before. The thread makes the context, decodes with it and frees it, since a
lane belongs to a thread and each thread that computes has a team of OpenMP threads of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass

from ringline.engine.desk import Desk
from ringline.engine.job import Job
from ringline.engine.ring_context import RingContext
from ringline.engine.rows import judge
from ringline.engine.step import Step, Verdict
from ringline.errors import EngineError, RinglineError
from ringline.llama.batch import Batch
from ringline.llama.choice import Wanted

__all__ = ["Group", "GroupFacts"]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """What libllama made of a context: tokens of each slot, of one decode, of one piece of it.

    `writes` is whether it can continue a text: an encoder cannot.
    """

    n_ctx: int
    n_batch: int
    n_ubatch: int
    writes: bool = True


class Group:
    """Starts its thread at once: it makes the context, waits for a desk, then decodes its steps."""

    def __init__(self, index: int, open_context: Callable[[], RingContext]) -> None:
        """Begin to make the context.

        Args:
            index: number of the group.
            open_context: called in the group's thread.
        """
        self.index = index
        self._open_context = open_context
        self._context: RingContext | None = None
        self._facts: Future[GroupFacts] = Future()
        self._desk: Future[Desk | None] = Future()
        #: called in the group's thread when the events of a step were told.
        self.after_step: Callable[[], object] = _nothing
        self._thread = threading.Thread(target=self._run, name=f"group-{index}", daemon=True)
        self._thread.start()

    def facts(self) -> GroupFacts:
        """Wait for the context; the nodes' deadlines bound the wait.

        Raises:
            RinglineError: why it could not be made.
        """
        return self._facts.result()

    def begin(self, desk: Desk) -> None:
        """Decode what this desk gives, until it gives no more."""
        self._desk.set_result(desk)

    def waiting(self) -> list[str]:
        """Who is waited for now: nodes that owe a reply, or this machine."""
        context = self._context
        return (context.waiting() if context is not None else []) or ["this machine"]

    def join(self, timeout: float | None = None) -> bool:
        """Wait until the context is freed; whether it is. A group that never began ends here."""
        if not self._desk.done():
            self._desk.set_result(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            context = self._context = self._open_context()
        except BaseException as error:
            self._facts.set_exception(error)
            return
        with context:
            sizes = context.n_ctx_seq, context.n_batch, context.n_ubatch
            self._facts.set_result(GroupFacts(*sizes, context.has_memory))
            desk = self._desk.result()
            if desk is not None:
                self._work(context, desk)

    def _work(self, context: RingContext, desk: Desk) -> None:
        batch = Batch(context.n_batch)
        while (step := desk.next_step(self.index)) is not None:
            try:
                verdicts = _decode(context, batch, step)
            except RinglineError as error:
                desk.failed(step, error)
            except Exception as error:  # a bug of ours: nobody may wait for ever because of it
                _log.exception("group %d failed", self.index)
                desk.failed(step, EngineError(f"the engine failed inside ({error!r})"))
            else:
                desk.done(step, verdicts)
            self.after_step()


def _nothing() -> None:
    """After a step of a group whose events nobody collects."""


def _decode(context: RingContext, batch: Batch, step: Step[Job]) -> dict[Job, Verdict]:
    """Decode a step, and judge the tokens that it gave.

    Raises:
        RinglineError: a node or the library failed: no context of this ring is of use any more.
    """
    for slot, position in step.trims:
        context.seq_rm(slot, position)
    batch.clear()
    rows = [
        (batch.add_run(run.tokens, run.position, run.slot, logits_last=run.logits), run)
        for run in step.runs
    ]
    judged = [(index, run) for index, run in rows if run.logits and run.task.end_wanted is None]
    asked = [(index, run) for index, run in judged if not run.task.writer.full]
    wanted = [Wanted(index, run.task.sampler, run.task.request.logprobs) for index, run in asked]
    choices = dict(zip([run.task for _, run in asked], context.step(batch, wanted), strict=True))
    return {run.task: judge(run, choices.get(run.task), context.n_ctx_seq) for _, run in judged}
