"""What an engine's process and its client say to each other: one class for each message.

The client opens once and then submits, cancels and asks (`questions`); the engine tells the events
of jobs, all those of a step in one message. Jobs and questions are named by numbers that the client
chooses.
"""

from __future__ import annotations

import msgspec

from ringline.engine.embedder import EmbedderFacts
from ringline.engine.embedding import EmbeddingOptions
from ringline.engine.engine import DEFAULT_PARALLEL
from ringline.engine.events import Outcome, Piece
from ringline.engine.job import Request
from ringline.engine.placement import Stage
from ringline.engine.process.error_facts import ErrorFacts
from ringline.engine.process.questions import Answer, Question
from ringline.engine.ring_model import DEFAULT_BATCH, DEFAULT_CONTEXT
from ringline.net.tls import TlsFiles

__all__ = [
    "About",
    "Accepted",
    "Cancel",
    "Done",
    "EngineSpec",
    "ErrorFacts",
    "Events",
    "Failed",
    "FromClient",
    "FromEngine",
    "Loading",
    "Lost",
    "ModelFacts",
    "Open",
    "Ready",
    "Submit",
]


class EngineSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which engine is wanted: what Ring, Ring.place and Engine are given.

    `nodes` are endpoints; `local_stages` starts so many nodes instead. `tls` as for Ring.
    """

    model: str
    nodes: tuple[str, ...] = ()
    local_stages: int = 0
    tls: TlsFiles | None = None
    devices: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    n_gpu_layers: int = -1
    n_threads: int | None = None
    repack: bool = True
    parallel: int = DEFAULT_PARALLEL
    groups: int | None = None
    n_ctx: int = DEFAULT_CONTEXT
    n_batch: int = DEFAULT_BATCH
    n_ubatch: int | None = None
    step_tokens: int | None = None
    queue: int | None = None
    embeddings: EmbeddingOptions | None = None


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What a model is, for those who do not load it.

    Attributes:
        name: what its file says that it is called; "" where it says nothing.
        n_vocab, n_embd, n_ctx_train: tokens, width of the hidden state, context in training.
        n_params, size: parameters, bytes of all weights.
        bos, eos: texts of the tokens that begin and end a text; "" where there is none.
        ends: all tokens that end a text.
        chat_template: the file's template in Jinja; None where it has none.
    """

    name: str
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    n_params: int
    size: int
    bos: str
    eos: str
    ends: tuple[int, ...]
    chat_template: str | None


class About(msgspec.Struct, frozen=True):
    """An engine that is ready: one token has been through all stages.

    Attributes:
        model: architecture, size and type of weights.
        stages: which device holds how many layers.
        capacity: requests at once, context of each, cost of the KV cache, in words.
        n_ctx: tokens of context of one request.
        parallel: requests at once.
        facts: of the model.
        writes: whether the model continues texts; an encoder does not.
        embedding: longest text and width of vectors; None: it does not embed.
    """

    model: str
    stages: tuple[Stage, ...]
    capacity: str
    n_ctx: int
    parallel: int
    facts: ModelFacts
    writes: bool = True
    embedding: EmbedderFacts | None = None


class Open(msgspec.Struct, tag="open"):
    """The first message: make this engine."""

    spec: EngineSpec


class Submit(msgspec.Struct, tag="submit"):
    """Take a prompt in, text or tokens."""

    job: int
    prompt: str | tuple[int, ...]
    request: Request


class Cancel(msgspec.Struct, tag="cancel"):
    """End a job, or give up a question; what has ended stays as it is."""

    job: int


class Loading(msgspec.Struct, tag="loading"):
    """So much of the model is loaded, 0 to 1."""

    share: float


class Ready(msgspec.Struct, tag="ready"):
    """The engine is there."""

    about: About


class Accepted(msgspec.Struct, tag="accepted"):
    """A job was taken in. Its first events may have come before this."""

    job: int


class Done(msgspec.Struct, tag="done"):
    """The end of a job that is done or cancelled."""

    job: int
    outcome: Outcome


class Failed(msgspec.Struct, tag="failed"):
    """The end of a job that failed or was not taken in; job -1: the engine could not be made."""

    job: int
    facts: ErrorFacts


class Events(msgspec.Struct, tag="events"):
    """What jobs told in one step: pieces of text first, then who has ended."""

    texts: list[tuple[int, Piece]]
    ends: list[Done | Failed]


class Lost(msgspec.Struct, tag="lost"):
    """The engine has ended and takes no jobs any more: a node failed."""

    facts: ErrorFacts


FromClient = Open | Submit | Cancel | Question
FromEngine = Loading | Ready | Accepted | Events | Failed | Lost | Answer
