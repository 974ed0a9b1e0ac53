"""A row of logits becomes a token of its job: sampled, described, written, told."""

from __future__ import annotations

from ringline.engine.events import Piece, TokenLogprob
from ringline.engine.generation import StopReason
from ringline.engine.job import Job
from ringline.engine.logprobs import token_logprob
from ringline.engine.step import Run, Verdict
from ringline.engine.task import TaskState
from ringline.errors import RinglineError
from ringline.llama.context import Context

__all__ = ["judge"]


def judge(context: Context, run: Run[Job], index: int) -> Verdict:
    """Choose the token that follows a run, tell what text became whole, and say how it goes on.

    An error here is the job's own (a grammar that allows no token): the others go on.

    Args:
        context: has just decoded the run.
        run: one whose last token asked for logits.
        index: that token's index in the batch.
    """
    job, writer = run.task, run.task.writer
    if writer.full:  # n_predict 0: the prompt alone was wanted
        writer.end(StopReason.LIMIT)
        return Verdict(end=TaskState.DONE)
    try:
        token = job.sampler.sample(context, index)
        piece = writer.take(token, _logprob(context, job, index, token))
    except RinglineError as error:
        job.failure = error
        return Verdict(end=TaskState.FAILED)
    if writer.stop_reason is not StopReason.END:
        job.clock.token()
    if writer.stop_reason is None and run.position + len(run.tokens) >= context.n_ctx_seq:
        # The newest token is not in the cache yet: decoding it would take one more place.
        piece = Piece.joined(piece, writer.end(StopReason.CONTEXT_FULL))
    if piece is not None:
        job.tell(piece)
    if writer.stop_reason is None:
        return Verdict(token)
    return Verdict(-1 if writer.stop_reason is StopReason.END else token, TaskState.DONE)


def _logprob(context: Context, job: Job, index: int, token: int) -> TokenLogprob | None:
    if job.request.logprobs is None:
        return None
    return token_logprob(context.logits(index), token, job.request.logprobs, context.model)
