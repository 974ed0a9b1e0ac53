"""Many requests at once over a ring.

    with Ring(["10.0.0.1:50052", "10.0.0.2:50052"]) as ring:
        with Engine(ring, "model.gguf", parallel=8, n_ctx=8192) as engine:
            jobs = [engine.submit(prompt, n_predict=64) for prompt in prompts]
            for job in jobs:
                print(job.result().text)

Any thread may submit, read and cancel. Every job ends exactly once: done, cancelled, or failed with
the cause. A node that fails ends all jobs; then a new engine over other nodes may be made.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import replace
from typing import Final, Self

from ringline.engine.capacity import Capacity
from ringline.engine.desk import Desk
from ringline.engine.embedder import Embedder
from ringline.engine.embedding import Embedding, EmbeddingOptions, with_embeddings, writes_none
from ringline.engine.events import Sink
from ringline.engine.group import Group, GroupFacts
from ringline.engine.job import Job, Request
from ringline.engine.metrics import EngineMetrics
from ringline.engine.model_size import ModelSize
from ringline.engine.placement import n_groups_for, n_ubatch_for
from ringline.engine.ring import Ring
from ringline.engine.ring_context import RingContext
from ringline.engine.ring_gauge import RingGauge
from ringline.engine.ring_model import DEFAULT_BATCH, DEFAULT_CONTEXT, PlacedModel
from ringline.engine.step import Limits
from ringline.engine.watchdog import Watchdog
from ringline.errors import CallerError, EngineError, RinglineError
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams

__all__ = ["DEFAULT_PARALLEL", "GREEDY", "STEP_DEADLINE", "Engine"]

DEFAULT_PARALLEL: Final = 4
#: seconds in one step after which the log says who is waited for.
STEP_DEADLINE: Final = 30.0
#: most tokens of a step in which a text is under way.
STEP_TOKENS: Final = 128
GREEDY: Final = SamplingParams(temperature=0.0)


class Engine:
    """Groups over one model, and the desk before them. A context manager.

    Attributes:
        model: the model's facts and vocabulary.
        stages: which device holds how many layers.
        capacity: slots, context of a request, cost of the KV cache; `describe()` says it.
        limits: what the scheduler keeps to, the token budget of a step among it.
        writes: whether the model continues texts; an encoder (BERT) does not.
        embedding: longest text and width of vectors, if it embeds.
    """

    def __init__(
        self,
        ring: Ring,
        model: PlacedModel | str | os.PathLike[str],
        *,
        parallel: int = DEFAULT_PARALLEL,
        groups: int | None = None,
        n_ctx: int = DEFAULT_CONTEXT,
        n_batch: int = DEFAULT_BATCH,
        n_ubatch: int | None = None,
        step_tokens: int | None = None,
        queue: int | None = None,
        step_deadline: float = STEP_DEADLINE,
        embeddings: EmbeddingOptions | None = None,
    ) -> None:
        """Make the groups' contexts.

        Args:
            ring: where the model runs.
            model: a placed model, or a GGUF file, which is then placed as `Ring.place` does it.
            parallel: most requests at once; the others wait.
            groups: number of groups; None: two where there are several stages, else one.
            n_ctx: tokens of context of all requests together, each gets an equal part; 0: for each
                what the model was trained for.
            n_batch: most tokens of a step of prompts alone.
            n_ubatch: most tokens that are computed at once; None: 64 where there are several
                stages, so that the pieces of a step keep all of them busy, else 512.
            step_tokens: most tokens of a step in which a text is under way, which bounds what the
                others' prompts add to the time of its next token. None: 128 of a prompt, and one
                of each slot of a group.
            queue: most requests that wait; None: any number.
            step_deadline: seconds in one step after which the log says who is waited for.
            embeddings: makes a context for embed() too; None: only where the model does nothing
                else.

        Raises:
            CallerError: a number makes no sense, or there is no memory.
            NetworkError, PeerError: a node failed. LibraryError: libllama cannot be used.
        """
        self._resources = ExitStack()
        try:
            placed = self._placed(ring, model, n_ctx, embeddings)
            self.model, self.stages = placed.model, placed.stages
            share = Capacity.share(
                parallel=parallel,
                groups=groups or n_groups_for(placed.stages, parallel),
                n_ctx=n_ctx,
                n_ctx_train=placed.model.n_ctx_train,
            )
            n_piece = n_ubatch or max(n_ubatch_for(placed.stages), *share.slots)
            # Before there are contexts: libllama aborts where a piece is smaller than its slots.
            limits = Limits(
                share.slots,
                share.n_ctx,
                budget=min(n_batch, step_tokens or _step_tokens(share)),
                prompt_budget=n_batch,
                piece=n_piece,
                reuse=placed.model.forgets_partly,
                queue=queue,
            )
            self._groups = self._open_groups(placed, share, n_batch, n_piece)
            facts = [group.facts() for group in self._groups]
            self.capacity = _measured(share, facts, placed.model)
            self.limits = _as_made(limits, facts)
            self._gauge = RingGauge(
                placed.remote,
                placed.stages,
                placed.model.path,
                n_layer=placed.model.n_layer,
                n_tokens=sum(n * f.n_ctx for n, f in zip(share.slots, facts, strict=True)),
            )
            self._desk = Desk(self.limits)
            self._watch(step_deadline)
            self.writes = all(fact.writes for fact in facts)
            self._embedder = self._open_embedder(placed, embeddings, queue)
            self.embedding = self._embedder.facts() if self._embedder else None
        except BaseException:
            self._resources.close()
            raise
        cause = EngineError("the engine was closed before this job ended")
        self._resources.callback(self._desk.close, cause)
        for group in self._groups:
            group.begin(self._desk)

    def submit(
        self,
        prompt: str | Sequence[int],
        *,
        n_predict: int = -1,
        sampling: SamplingParams = GREEDY,
        stop: Sequence[str] = (),
        logprobs: int | None = None,
        special: bool = False,
        sink: Sink | None = None,
    ) -> Job:
        """Take a prompt in.

        Args:
            prompt: text, in which the names of control tokens are understood, or tokens.
            n_predict: most tokens; negative: until the text ends or the context is full.
            sampling: how tokens are chosen.
            stop: strings that end the text and are not shown.
            logprobs: how many of the likeliest tokens are named with each; None: no logprobs.
            special: whether control tokens are shown in the text.
            sink: takes the job's events, instead of whoever iterates over it or awaits its result.

        Raises:
            CallerError: the prompt or the request cannot be used. BusyError: the queue is full.
            RinglineError: why the engine has ended.
        """
        request = Request(n_predict, sampling, tuple(stop), logprobs, special)
        return self.submit_request(prompt, request, sink=sink)

    def submit_request(
        self, prompt: str | Sequence[int], request: Request, *, sink: Sink | None = None
    ) -> Job:
        """Take a prompt in; as submit().

        Raises:
            RinglineError: as submit().
        """
        if not self.writes:
            raise writes_none(self.model.path.name)
        tokens = (
            self.model.tokenize(prompt, parse_special=True) if isinstance(prompt, str) else prompt
        )
        self._check_tokens(tokens)
        sampler = _sampler(self.model, request.sampling, tokens)
        job = Job(
            tokens,
            request,
            vocabulary=self.model,
            sampler=sampler,
            sink=sink,
            cancel=self._desk.cancel,
        )
        self._desk.submit(job)
        return job

    def embed(
        self, inputs: Sequence[str | Sequence[int]], *, normalize: bool = True
    ) -> Future[list[Embedding]]:
        """Ask for the vectors of texts.

        Args:
            inputs: texts, in which the names of control tokens are understood, or tokens.
            normalize: whether the vectors are brought to length 1.

        Returns:
            One embedding for each input, in order; raises a RinglineError if a node fails. It may
            be cancelled: what waits ends at once, what is computed after the texts under way.

        Raises:
            CallerError: an input cannot be used, or this engine does not embed.
            BusyError: the queue is full. RinglineError: why the engine has ended.
        """
        if self._embedder is None:
            raise CallerError(
                "this engine has no context for embeddings: start it with --embeddings "
                "(in Python: Engine(..., embeddings=EmbeddingOptions()))"
            )
        if self._desk.cause is not None:
            raise self._desk.cause
        texts = [
            self.model.tokenize(text, parse_special=True) if isinstance(text, str) else text
            for text in inputs
        ]
        return self._embedder.submit(texts, normalize=normalize)

    def _check_tokens(self, tokens: Sequence[int]) -> None:
        """For one token that is none libllama would fail the whole step, and so all jobs."""
        n_vocab = self.model.n_vocab
        if tokens and not (min(tokens) >= 0 and max(tokens) < n_vocab):
            wrong = next(token for token in tokens if not 0 <= token < n_vocab)
            raise CallerError(f"token {wrong} is not in the vocabulary of {n_vocab} tokens")

    def metrics(self) -> EngineMetrics:
        """What the engine has done so far, and does now; waits for no node.

        What nodes say of their part is what they said last, a second ago or more; asking for it
        lets them be asked again (client/observer.py).
        """
        metrics = self._desk.metrics()
        return replace(
            metrics,
            kv_total_tokens=self.capacity.parallel * self.capacity.n_ctx,
            stages=self._gauge.stages(self._desk.cause),
            edges=self._gauge.edges(),
            errors=self._gauge.errors() | metrics.errors,
            embedded_tokens=self._embedder.n_tokens if self._embedder else 0,
        )

    @property
    def cause(self) -> RinglineError | None:
        """Why the engine takes no jobs any more; None while it does."""
        return self._desk.cause

    def after_step(self, call: Callable[[], object]) -> None:
        """Have `call` called after each step, when all its events were told; quick, never raises.

        It runs on the thread of the step's group.
        """
        for group in self._groups:
            group.after_step = call

    def close(self) -> None:
        """End all jobs, wait for the steps under way, free the contexts; may be called again."""
        self._resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _placed(
        self,
        ring: Ring,
        model: PlacedModel | str | os.PathLike[str],
        n_ctx: int,
        embeddings: EmbeddingOptions | None,
    ) -> PlacedModel:
        """The model, which the engine closes if it has placed it."""
        if not isinstance(model, PlacedModel):
            room = with_embeddings(n_ctx, embeddings)
            model = self._resources.enter_context(ring.place(model, n_ctx=room))
        # From here on the ring must not close the model before the groups have ended.
        ring.before_close(self.close)
        return model

    def _open_groups(
        self, placed: PlacedModel, share: Capacity, n_batch: int, n_ubatch: int
    ) -> list[Group]:
        """Make all contexts at once: each allocates buffers on every node.

        Each sequence has a cache of its own (kv_unified is off). With one cache for all, a batch
        would never be cut, but every row would attend, masked, to the cells of all the others: on a
        CPU 288 instead of 224 ms for a step of 16 texts of 192 tokens. A text would share its room,
        and lie in other cells than it does alone, which rounds sums differently. libllama cuts such
        a batch into one piece for each run of neighbouring sequences and one for the rest of a
        prompt; that is why a step lists its slots in ascending order (Scheduler.plan).
        """
        groups = []
        for index, n_slots in enumerate(share.slots):

            def open_context(n_slots: int = n_slots) -> RingContext:
                return placed.context(
                    n_ctx=share.n_ctx * n_slots,
                    n_batch=n_batch,
                    n_ubatch=n_ubatch,
                    n_seq_max=n_slots,
                )

            groups.append(Group(index, open_context))
            self._resources.callback(groups[-1].join)
        return groups

    def _open_embedder(
        self, placed: PlacedModel, options: EmbeddingOptions | None, queue: int | None
    ) -> Embedder | None:
        """Make the context that embeds, if one is wanted or the model can do nothing else."""
        if options is None and self.writes:
            return None
        options = options or EmbeddingOptions()
        embedder = Embedder.over(placed, options, limit=queue, failed=self._desk.close)
        cause = EngineError("the engine was closed before these texts were embedded")
        self._resources.callback(embedder.close, cause)
        return embedder

    def _watch(self, deadline: float) -> None:
        groups = self._groups
        watchdog = Watchdog(self._desk, lambda i: groups[i].waiting(), deadline=deadline)
        self._resources.callback(watchdog.close)


def _step_tokens(share: Capacity) -> int:
    """The default for a step in which a text is under way: prompts have half of it at the least.

    One token of each slot and one of the prompt make its first piece, see Scheduler.
    """
    return STEP_TOKENS + 1 + max(share.slots)


def _measured(share: Capacity, facts: Sequence[GroupFacts], model: Model) -> Capacity:
    """What libllama made of the sizes that were asked for, and what the caches take then."""
    n_ctx = min(fact.n_ctx for fact in facts)
    n_tokens = sum(n * fact.n_ctx for n, fact in zip(share.slots, facts, strict=True))
    return Capacity(share.slots, n_ctx, n_tokens * ModelSize.read(model.path).kv)


def _as_made(limits: Limits, facts: Sequence[GroupFacts]) -> Limits:
    """The limits, with the sizes as libllama took them."""
    return replace(
        limits,
        n_ctx=min(fact.n_ctx for fact in facts),
        budget=min(limits.budget, *(fact.n_batch for fact in facts)),
        prompt_budget=min(fact.n_batch for fact in facts),
    )


def _sampler(model: Model, params: SamplingParams, prompt: Sequence[int]) -> Sampler:
    """A sampler that has seen the prompt."""
    sampler = Sampler(model, params)
    sampler.accept_all(prompt)
    return sampler
