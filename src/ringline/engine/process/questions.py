"""What a client asks an engine's process that is no job, and the answers.

A question has a number, which its answer names. What has to do with the vocabulary, the chat
template or a grammar is asked here, because only the engine's process loads libllama.
"""

from __future__ import annotations

import msgspec

from ringline.engine.embedding import Embedding
from ringline.engine.metrics import EngineMetrics
from ringline.engine.process.error_facts import ErrorFacts

__all__ = [
    "Answer",
    "AskEmbeddings",
    "AskGrammar",
    "AskMetrics",
    "AskPrompt",
    "AskText",
    "AskTokens",
    "Embeddings",
    "Metrics",
    "Question",
    "Refused",
    "Said",
    "Tokens",
]


class AskMetrics(msgspec.Struct, tag="ask-metrics"):
    """What has the engine done so far? The answer is Metrics."""

    question: int


class AskTokens(msgspec.Struct, tag="ask-tokens"):
    """Which tokens is this text? The answer is Tokens. For the flags see Model.tokenize."""

    question: int
    text: str
    add_special: bool = True
    parse_special: bool = False


class AskText(msgspec.Struct, tag="ask-text"):
    """Which text are these tokens? The answer is Said."""

    question: int
    tokens: tuple[int, ...]


class AskPrompt(msgspec.Struct, tag="ask-prompt"):
    """What does the model's chat template make of a conversation? The answer is Said.

    `variables` is a JSON object: `messages`, and what else the template is to know (`tools`).
    """

    question: int
    variables: str


class AskGrammar(msgspec.Struct, tag="ask-grammar"):
    """Which grammar has the values that this JSON schema allows? The answer is Said."""

    question: int
    schema: str


class AskEmbeddings(msgspec.Struct, tag="ask-embeddings"):
    """Which vectors have these texts? The answer is Embeddings, when the ring has computed them.

    An input is a text or tokens; see Engine.embed. Cancel takes the number of this question too.
    """

    question: int
    inputs: tuple[str | tuple[int, ...], ...]
    normalize: bool = True


class Metrics(msgspec.Struct, tag="metrics"):
    """The answer to AskMetrics."""

    question: int
    metrics: EngineMetrics


class Tokens(msgspec.Struct, tag="tokens"):
    """Tokens, and the bytes of each."""

    question: int
    tokens: tuple[int, ...]
    pieces: tuple[bytes, ...]


class Embeddings(msgspec.Struct, tag="embeddings"):
    """The answer to AskEmbeddings: one for each input, in order."""

    question: int
    embeddings: list[Embedding]


class Said(msgspec.Struct, tag="said"):
    """An answer that is a text."""

    question: int
    text: str


class Refused(msgspec.Struct, tag="refused"):
    """A question that has no answer, and why."""

    question: int
    facts: ErrorFacts


Question = AskMetrics | AskTokens | AskText | AskPrompt | AskGrammar | AskEmbeddings
Answer = Metrics | Tokens | Said | Embeddings | Refused
