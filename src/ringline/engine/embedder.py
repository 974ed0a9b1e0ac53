"""Embeds texts over a ring: one context that pools, the thread that drives it, requests in order.

It stands beside the groups: a text is read in one piece and forgotten, so there is nothing for a
scheduler to share. Texts of several requests are never read together: how a row is rounded may
depend on its neighbours, and the same request has to give the same numbers.
"""

from __future__ import annotations

import logging
import queue
import threading
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


@dataclass(slots=True)
class _Request:
    texts: list[Tokens]
    normalize: bool
    answer: Future[list[Embedding]] = field(default_factory=Future)


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
        # Guards _cause and the order of _requests: None comes last, behind it there is nothing.
        self._lock = threading.Lock()
        self._cause: RinglineError | None = None
        self._requests: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
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
        """Ask for the vectors of some texts; the future can be cancelled until their turn comes.

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
        with self._lock:
            if self._cause is not None:
                raise self._cause
            if self._limit is not None and self._requests.qsize() >= self._limit:
                raise BusyError(f"{self._limit} requests for embeddings wait already: try later")
            self._requests.put(request)
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
        with self._lock:
            if self._cause is None:
                self._cause = cause
                self._requests.put(None)

    def _run(self) -> None:
        try:
            context = self._open_context()
        except BaseException as error:
            self._facts.set_exception(error)
            return
        with context:
            self._facts.set_result(EmbedderFacts(context.n_batch, context.model.n_embd_out))
            batch = Batch(context.n_batch)
            while (request := self._requests.get()) is not None:
                self._serve(context, batch, request)

    def _serve(self, context: RingContext, batch: Batch, request: _Request) -> None:
        if self._cause is not None:
            request.answer.set_exception(self._cause)
            return
        if not request.answer.set_running_or_notify_cancel():
            return
        try:
            embeddings = _embed(context, batch, request)
        except CallerError as error:
            request.answer.set_exception(error)
        except RinglineError as error:
            self._give_up(request, error)
        except Exception as error:  # a bug of ours: nobody may wait for ever because of it
            _log.exception("embedding failed")
            self._give_up(request, EngineError(f"the engine failed inside ({error!r})"))
        else:
            self.n_tokens += sum(embedding.n_tokens for embedding in embeddings)
            request.answer.set_result(embeddings)

    def _give_up(self, request: _Request, error: RinglineError) -> None:
        self._stop(error)
        self._failed(error)
        request.answer.set_exception(error)


def _embed(context: RingContext, batch: Batch, request: _Request) -> list[Embedding]:
    """Read all texts of a request, run by run.

    Raises:
        RinglineError: a node or the library failed.
    """
    found: list[Embedding] = []
    lengths = [len(text) for text in request.texts]
    for run in packed(lengths, n_tokens=context.n_batch, n_texts=context.n_seq_max):
        batch.clear()
        for sequence, index in enumerate(run):
            batch.add_run(request.texts[index], 0, sequence, all_rows=True)
        for index, vector in zip(run, context.embed(batch, len(run)), strict=True):
            values = normalized(vector) if request.normalize else vector
            found.append(Embedding(values.astype("<f4").tobytes(), lengths[index]))
    return found
