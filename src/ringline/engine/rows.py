"""A choice becomes a token of its job: described, written, told."""

from __future__ import annotations

from ringline.engine.events import Piece, TokenLogprob
from ringline.engine.generation import StopReason
from ringline.engine.job import Job
from ringline.engine.logprobs import described
from ringline.engine.step import Run, Verdict
from ringline.engine.task import TaskState
from ringline.errors import RinglineError
from ringline.llama.choice import Choice

__all__ = ["judge"]


def judge(run: Run[Job], choice: Choice | None, n_ctx: int) -> Verdict:
    """Take the token that follows a run, tell what text became whole, and say how it goes on.

    An error here is the job's own (a grammar that allows no token): the others go on.

    Args:
        run: one whose last token asked for logits, just decoded.
        choice: what its sampler chose; None where no token was wanted.
        n_ctx: most tokens of a slot.
    """
    job, writer = run.task, run.task.writer
    if choice is None:  # n_predict 0: the prompt alone was wanted
        writer.end(StopReason.LIMIT)
        return Verdict(end=TaskState.DONE)
    try:
        token = choice.checked()
        piece = writer.take(token, _logprob(job, choice))
    except RinglineError as error:
        job.failure = error
        return Verdict(end=TaskState.FAILED)
    if writer.stop_reason is not StopReason.END:
        job.clock.token()
    if writer.stop_reason is None and run.position + len(run.tokens) >= n_ctx:
        # The newest token is not in the cache yet: decoding it would take one more place.
        piece = Piece.joined(piece, writer.end(StopReason.CONTEXT_FULL))
    if piece is not None:
        job.tell(piece)
    if writer.stop_reason is None:
        return Verdict(token)
    return Verdict(-1 if writer.stop_reason is StopReason.END else token, TaskState.DONE)


def _logprob(job: Job, choice: Choice) -> TokenLogprob | None:
    if choice.logprobs is None:
        return None
    return described(choice.token, choice.logprobs, job.writer.vocabulary)
