"""Answers to questions about the model, given on a thread of their own.

A template or a schema takes a while in Python; meanwhile jobs are submitted and cancelled.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from typing import Final

from ringline.engine.embedding import Embedding
from ringline.engine.engine import Engine
from ringline.engine.process.error_facts import ErrorFacts
from ringline.engine.process.messages import ModelFacts
from ringline.engine.process.questions import (
    Answer,
    AskEmbeddings,
    AskGrammar,
    AskMetrics,
    AskPrompt,
    AskText,
    AskTokens,
    Embeddings,
    Metrics,
    Question,
    Refused,
    Said,
    Tokens,
)
from ringline.errors import EngineError, RinglineError
from ringline.llama.chat_template import ChatTemplate
from ringline.llama.json_schema import schema_grammar
from ringline.llama.model import Model

__all__ = ["Answers", "model_facts"]

#: answered by this thread itself.
_Quick = AskMetrics | AskTokens | AskText | AskPrompt | AskGrammar
#: the conversation that compiles the template before anybody waits for it.
_HELLO: Final = '{"messages": [{"role": "user", "content": "Hello"}]}'


def model_facts(model: Model) -> ModelFacts:
    """What clients are told of a model."""
    return ModelFacts(
        name=model.metadata("general.name") or "",
        n_vocab=model.n_vocab,
        n_embd=model.n_embd,
        n_ctx_train=model.n_ctx_train,
        n_params=model.n_params,
        size=model.size_bytes,
        bos=model.text_of(model.bos),
        eos=model.text_of(model.eos),
        ends=tuple(token for token in range(model.n_vocab) if model.is_end(token)),
        chat_template=model.chat_template,
    )


class Answers:
    """Answers one question after the other."""

    def __init__(
        self, engine: Engine, send: Callable[[Answer], object], *, computed: Callable[[], object]
    ) -> None:
        """Begin.

        Args:
            engine: what is asked about.
            send: takes the answers; on a thread of ours, or the caller's.
            computed: called when the ring has computed embeddings, or failed to.
        """
        self._engine = engine
        self._send = send
        self._computed = computed
        self._template = ChatTemplate.of(engine.model)
        # Guards _embeddings: those that are wanted, by the number of the question; None: the
        # thread has not come to it.
        self._lock = threading.Lock()
        self._embeddings: dict[int, Future[list[Embedding]] | None] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._thread.submit(self._answer, AskPrompt(-1, _HELLO))

    def take(self, question: Question) -> None:
        """Take a question; its answer goes to `send`."""
        if isinstance(question, AskMetrics):
            self._send(Metrics(question.question, self._engine.metrics()))
        elif isinstance(question, AskEmbeddings):
            with self._lock:
                self._embeddings[question.question] = None
            self._thread.submit(self._embed, question)
        else:
            self._thread.submit(self._tell, question)

    def cancel(self, question: int) -> None:
        """Nobody wants these embeddings any more: they fail, at the latest after a run."""
        future = self._forget(question)
        if future is not None:
            future.cancel()

    def close(self) -> None:
        """End after the question under way; those that wait get no answer."""
        self._thread.shutdown(cancel_futures=True)

    def _embed(self, question: AskEmbeddings) -> None:
        number = question.question
        try:
            future = self._engine.embed(question.inputs, normalize=question.normalize)
        except RinglineError as error:
            self._forget(number)
            self._send(Refused(number, ErrorFacts.of(error)))
            return
        with self._lock:
            wanted = number in self._embeddings
            if wanted:
                self._embeddings[number] = future
        if not wanted:
            future.cancel()
        future.add_done_callback(lambda done: self._embedded(number, done))

    def _embedded(self, number: int, done: Future[list[Embedding]]) -> None:
        """Send what came of it; on the thread that embeds, or the one that cancels."""
        self._forget(number)
        try:
            self._send(Embeddings(number, done.result()))
        except CancelledError:
            self._send(Refused(number, ErrorFacts.of(EngineError("this was cancelled"))))
        except RinglineError as error:
            self._send(Refused(number, ErrorFacts.of(error)))
        self._computed()

    def _forget(self, number: int) -> Future[list[Embedding]] | None:
        with self._lock:
            return self._embeddings.pop(number, None)

    def _tell(self, question: _Quick) -> None:
        self._send(self._answer(question))

    def _answer(self, question: _Quick) -> Answer:
        number, model = question.question, self._engine.model
        try:
            match question:
                case AskTokens(_, text, add_special, parse_special):
                    ids = model.tokenize(text, add_special=add_special, parse_special=parse_special)
                    pieces = tuple(model.piece(token, special=True) for token in ids)
                    return Tokens(number, tuple(ids), pieces)
                case AskText(_, tokens):
                    whole = b"".join(model.piece(token, special=True) for token in tokens)
                    return Said(number, whole.decode("utf-8", "replace"))
                case AskPrompt(_, variables):
                    return Said(number, self._template.render(variables))
                case AskGrammar(_, schema):
                    return Said(number, schema_grammar(schema))
                case AskMetrics():
                    return Metrics(number, self._engine.metrics())
        except RinglineError as error:
            return Refused(number, ErrorFacts.of(error))
