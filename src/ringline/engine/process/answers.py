"""Answers to questions about the model, given on a thread of their own.

A template or a schema takes a while in Python; meanwhile jobs are submitted and cancelled.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from ringline.engine.engine import Engine
from ringline.engine.process.error_facts import ErrorFacts
from ringline.engine.process.messages import ModelFacts
from ringline.engine.process.questions import (
    Answer,
    AskGrammar,
    AskMetrics,
    AskPrompt,
    AskText,
    AskTokens,
    Metrics,
    Question,
    Refused,
    Said,
    Tokens,
)
from ringline.errors import RinglineError
from ringline.llama.chat_template import ChatTemplate
from ringline.llama.json_schema import schema_grammar
from ringline.llama.model import Model

__all__ = ["Answers", "model_facts"]

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
        bos=_text_of(model, model.bos),
        eos=_text_of(model, model.eos),
        chat_template=model.chat_template,
    )


class Answers:
    """Answers one question after the other."""

    def __init__(self, engine: Engine, send: Callable[[Answer], object]) -> None:
        """Begin.

        Args:
            engine: what is asked about.
            send: takes the answers; on a thread of ours, or the caller's.
        """
        self._engine = engine
        self._send = send
        model = engine.model
        facts = model_facts(model)
        self._template = ChatTemplate(
            facts.chat_template, bos=facts.bos, eos=facts.eos, adds_bos=model.adds_bos
        )
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="answers")
        self._thread.submit(self._answer, AskPrompt(-1, _HELLO))

    def take(self, question: Question) -> None:
        """Take a question; its answer goes to `send`."""
        if isinstance(question, AskMetrics):
            self._send(Metrics(question.question, self._engine.metrics()))
        else:
            self._thread.submit(self._tell, question)

    def close(self) -> None:
        """End after the question under way; those that wait get no answer."""
        self._thread.shutdown(cancel_futures=True)

    def _tell(self, question: Question) -> None:
        self._send(self._answer(question))

    def _answer(self, question: Question) -> Answer:
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


def _text_of(model: Model, token: int | None) -> str:
    return "" if token is None else model.piece(token, special=True).decode("utf-8", "replace")
