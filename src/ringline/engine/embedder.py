"""Embeds texts over a ring: one context that pools, the thread that drives it, requests in order.

It stands beside the groups: a text is read in one piece and forgotten, so there is nothing for a
scheduler to share. Texts of several requests are never read together: how a row is rounded may
depend on its neighbours, and the same request has to give the same numbers.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Final

from ringline.engine.embedding import Embedding, EmbeddingOptions, normalized, packed
from ringline.engine.ring_context import RingContext
from ringline.engine.ring_model import PlacedModel
from ringline.errors import BusyError, CallerError, EngineError, RinglineError
from ringline.llama.batch import Batch
from ringline.llama.pooling import choose_pooling

__all__ = ["Embedder", "EmbedderFacts"]

_log = logging.getLogger(__name__)

#: texts that are read at once.
MOST_TEXTS: Final = 32
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class EmbedderFacts:
    """What became of the context: most tokens of a text, numbers of a vector."""

    n_tokens: int
    width: int


class _Answer(Future[list[Embedding]]):
    """An answer that may be given up while it is computed: it fails after the run under way."""

    unwanted = False

    def cancel(self) -> bool:
        self.unwanted = True
        return super().cancel()


@dataclass(slots=True)
class _Request:
    texts: list[Tokens]
    normalize: bool
    answer: _Answer = field(default_factory=_Answer)


class Embedder:
    """Starts its thread at once, which makes the context. Close it; any thread may ask.

    Attributes:
        n_tokens: tokens embedded so far.
    """

    def __init__(
        self,
        open_context: Callable[[], RingContext],
        *,
        n_vocab: int,
        advice: str,
        limit: int | None,
        failed: Callable[[RinglineError], None],
    ) -> None:
        """Begin to make the context.

        Args:
            open_context: called in the thread: a context whose batch is one piece.
            n_vocab: size of the vocabulary.
            advice: what to do about a text that is too long.
            limit: most requests that wait; None: any number.
            failed: is told of an error after which nothing more can be embedded.
        """
        self.n_tokens = 0
        self._open_context = open_context
        self._n_vocab = n_vocab
        self._advice = advice
        self._limit = limit
        self._failed = failed
        # Guards the three below. The thread sleeps on it; it is never held across a decode.
        self._changed = threading.Condition()
        self._cause: RinglineError | None = None
        self._waiting: deque[_Request] = deque()
        self._busy = False
        self._facts: Future[EmbedderFacts] = Future()
        self._thread = threading.Thread(target=self._run, name="embedder", daemon=True)
        self._thread.start()

    @classmethod
    def over(
        cls,
        placed: PlacedModel,
        options: EmbeddingOptions,
        *,
        limit: int | None,
        failed: Callable[[RinglineError], None],
    ) -> Embedder:
        """Make one for a placed model, within what the model was trained for; see __init__.

        A text has to be one piece of one batch, and the texts of a batch share its cells.

        Raises:
            CallerError: the model makes no vectors of texts.
        """
        pooling = choose_pooling(placed.model, options.pooling)
        most = placed.model.n_ctx_train or options.n_tokens
        n_tokens = min(options.n_tokens, most)
        advice = "shorten it, or raise --embedding-tokens"
        if n_tokens == most:
            advice = "shorten it, the model was trained for no more"

        def open_context() -> RingContext:
            return placed.context(
                n_ctx=n_tokens,
                n_batch=n_tokens,
                n_ubatch=n_tokens,
                n_seq_max=min(MOST_TEXTS, n_tokens),  # libllama aborts on more than fit a piece
                kv_unified=True,
                pooling=pooling,
            )

        return cls(
            open_context,
            n_vocab=placed.model.n_vocab,
            advice=advice,
            limit=limit,
            failed=failed,
        )

    def facts(self) -> EmbedderFacts:
        """Wait for the context; the nodes' deadlines bound the wait.

        Raises:
            RinglineError: why it could not be made.
        """
        return self._facts.result()

    def submit(self, texts: Sequence[Sequence[int]], *, normalize: bool) -> Future[list[Embedding]]:
        """Ask for the vectors of some texts.

        Whoever cancels the future is no longer waited for: it ends at once while it waits, and with
        an EngineError after the run of texts under way.

        Args:
            texts: tokens of each.
            normalize: whether the vectors are brought to length 1.

        Raises:
            CallerError: a text is empty or too long, or a token is none of the vocabulary.
            BusyError: too many requests wait. RinglineError: why nothing more can be embedded.
        """
        request = _Request([tuple(text) for text in texts], normalize)
        for number, text in enumerate(request.texts, start=1):
            self._check(number, text)
        with self._changed:
            if self._cause is not None:
                raise self._cause
            self._waiting = deque(one for one in self._waiting if not one.answer.cancelled())
            ahead = len(self._waiting) + self._busy
            if self._limit is not None and ahead > self._limit:
                raise BusyError(f"{ahead} requests for embeddings are ahead already: try later")
            self._waiting.append(request)
            self._changed.notify()
        return request.answer

    def close(self, cause: RinglineError) -> None:
        """Fail what waits, and free the context; may be called again."""
        self._stop(cause)
        self._thread.join()

    def _check(self, number: int, text: Tokens) -> None:
        most = self.facts().n_tokens
        if not text:
            raise CallerError(f"input {number} is empty: it needs at least one token")
        if len(text) > most:
            raise CallerError(
                f"input {number} is too large: it has {len(text)} tokens and at most {most} can "
                f"be embedded at once: {self._advice}"
            )
        if not 0 <= min(text) <= max(text) < self._n_vocab:
            raise CallerError(
                f"input {number} has a token that is not in the vocabulary of {self._n_vocab}"
            )

    def _stop(self, cause: RinglineError) -> None:
        with self._changed:
            self._cause = self._cause or cause
            waiting, self._waiting = self._waiting, deque()
            self._changed.notify()
        for request in waiting:
            if request.answer.set_running_or_notify_cancel():
                request.answer.set_exception(cause)

    def _next(self) -> _Request | None:
        """Wait for a request that somebody still waits for; None: there will be no more."""
        with self._changed:
            while self._cause is None:
                while self._waiting:
                    request = self._waiting.popleft()
                    if request.answer.set_running_or_notify_cancel():
                        self._busy = True
                        return request
                self._changed.wait()
            return None

    def _run(self) -> None:
        try:
            context = self._open_context()
        except BaseException as error:
            self._facts.set_exception(error)
            return
        with context:
            self._facts.set_result(EmbedderFacts(context.n_batch, context.model.n_embd_out))
            batch = Batch(context.n_batch)
            while (request := self._next()) is not None:
                self._serve(context, batch, request)

    def _serve(self, context: RingContext, batch: Batch, request: _Request) -> None:
        try:
            embeddings = self._embed(context, batch, request)
        except _GivenUp as error:
            self._finish(request, error.cause)
        except CallerError as error:
            self._finish(request, error)
        except RinglineError as error:
            self._give_up(request, error)
        except Exception as error:  # a bug of ours: nobody may wait for ever because of it
            _log.exception("embedding failed")
            self._give_up(request, EngineError(f"the engine failed inside ({error!r})"))
        else:
            self.n_tokens += sum(embedding.n_tokens for embedding in embeddings)
            self._finish(request, embeddings)

    def _give_up(self, request: _Request, error: RinglineError) -> None:
        self._stop(error)
        self._failed(error)
        self._finish(request, error)

    def _finish(self, request: _Request, end: list[Embedding] | RinglineError) -> None:
        """Tell the end of a request; whoever hears of it finds room for another one."""
        with self._changed:
            self._busy = False
        if isinstance(end, RinglineError):
            request.answer.set_exception(end)
        else:
            request.answer.set_result(end)

    def _embed(self, context: RingContext, batch: Batch, request: _Request) -> list[Embedding]:
        """Read all texts of a request, run by run.

        Raises:
            _GivenUp: nobody waits for them, or they may not go on. RinglineError: a node or the
                library failed.
        """
        found: list[Embedding] = []
        lengths = [len(text) for text in request.texts]
        for run in packed(lengths, n_tokens=context.n_batch, n_texts=context.n_seq_max):
            if self._cause is not None or request.answer.unwanted:
                raise _GivenUp(self._cause or EngineError("these embeddings were cancelled"))
            batch.clear()
            for sequence, index in enumerate(run):
                batch.add_run(request.texts[index], 0, sequence, all_rows=True)
            for index, vector in zip(run, context.embed(batch, len(run)), strict=True):
                values = normalized(vector) if request.normalize else vector
                found.append(Embedding(values.astype("<f4").tobytes(), lengths[index]))
        return found


class _GivenUp(Exception):
    """A request that is not finished."""

    def __init__(self, cause: RinglineError) -> None:
        super().__init__(str(cause))
        self.cause = cause
