"""A model whose layers are spread over a ring: placed, and with a context for one prompt a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Self, TypeVar

from ringline.client.counters import Window
from ringline.client.ring import RemoteDevices
from ringline.engine.embedding import writes_none
from ringline.engine.generation import Generation, PromptProgress
from ringline.engine.placement import Stage
from ringline.engine.ring_context import RingContext
from ringline.errors import RinglineError
from ringline.llama.model import Model
from ringline.llama.pooling import Pooling
from ringline.llama.sampler import Sampler, SamplingParams

if TYPE_CHECKING:
    from ringline.engine.ring import Ring

__all__ = [
    "DEFAULT_BATCH",
    "DEFAULT_CONTEXT",
    "DEFAULT_UBATCH",
    "PlacedModel",
    "RingModel",
    "explained",
]

DEFAULT_CONTEXT: Final = 4096
DEFAULT_BATCH: Final = 2048
DEFAULT_UBATCH: Final = 512

T = TypeVar("T")


def explained(remote: RemoteDevices, call: Callable[[], T]) -> T:
    """Run a call into libllama; where it gives up, the node's own reason wins.

    Raises:
        RinglineError: what the call raises, or why a node refused.
    """
    try:
        return call()
    except RinglineError:
        remote.failures.explain()
        raise


class PlacedModel:
    """A model on the devices of a ring, for as many contexts as are wanted. A context manager.

    Attributes:
        remote: the ring's devices.
        model: its facts and vocabulary.
        stages: which device holds how many layers.
        reason: why they stand in this order; "" where there is nothing to say.
        n_threads: CPU threads of each context.
    """

    def __init__(
        self, remote: RemoteDevices, model: Model, stages: list[Stage], reason: str, n_threads: int
    ) -> None:
        self.remote = remote
        self.model = model
        self.stages = stages
        self.reason = reason
        self.n_threads = n_threads

    def context(
        self,
        *,
        n_ctx: int,
        n_batch: int,
        n_ubatch: int,
        n_seq_max: int = 1,
        kv_unified: bool = False,
        pooling: Pooling | None = None,
    ) -> RingContext:
        """Make a context, on connections of its own; the calling thread uses and closes it.

        Args:
            n_ctx: tokens of context of all sequences; 0: what the model was trained for.
            n_batch: most tokens in one decode.
            n_ubatch: most tokens in one piece of it.
            n_seq_max: number of sequences; each has an equal part of n_ctx for itself.
            kv_unified: whether they share all of n_ctx instead.
            pooling: for embeddings: how the vectors of a sequence become one.

        Raises:
            CallerError: a size that makes no sense, or that there is no memory for.
            NetworkError, PeerError: a node failed.
        """
        return explained(
            self.remote,
            lambda: RingContext(
                self.model,
                self.remote,
                n_ctx=n_ctx,
                n_batch=n_batch,
                n_ubatch=n_ubatch,
                n_seq_max=n_seq_max,
                n_threads=self.n_threads,
                kv_unified=kv_unified,
                pooling=pooling,
            ),
        )

    def close(self) -> None:
        """Free the model, here and on the nodes; may be called again."""
        self.model.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class RingModel:
    """A model loaded over a ring, with one context. A context manager.

    Attributes:
        ring: the ring.
        placed: the model without its context.
        model: its facts and vocabulary.
        context: decodes.
        stages: which device holds how many layers.
        window: the traffic of decode steps (one token after the prompt) so far.
    """

    def __init__(self, ring: Ring, placed: PlacedModel, context: RingContext) -> None:
        self.ring = ring
        self.placed = placed
        self.model = placed.model
        self.context = context
        self.stages = placed.stages
        self.window = Window(placed.remote.counters)

    def generate(
        self,
        prompt: str,
        *,
        n_predict: int = -1,
        sampling: SamplingParams | None = None,
        progress: PromptProgress | None = None,
        special: bool = False,
    ) -> Generation:
        """Continue a prompt: iterate over the result for pieces of text.

        Args:
            prompt: text; the names of control tokens in it are understood.
            n_predict: most tokens; negative: until the text ends or the context is full.
            sampling: how tokens are chosen; None: greedy.
            progress: called after each chunk of the prompt with tokens done and in all.
            special: whether control tokens are shown in the text.

        Raises:
            CallerError: the prompt is empty or does not fit, or the model is an encoder. While
                iterating also NetworkError and PeerError: a node failed.
        """
        if not self.context.has_memory:
            raise writes_none(self.model.path.name)
        tokens = self.model.tokenize(prompt, parse_special=True)
        return Generation(
            self.context,
            Sampler(self.model, sampling or SamplingParams(temperature=0.0)),
            tokens,
            n_predict=n_predict,
            progress=progress,
            special=special,
            observer=self.window,
        )

    def close(self) -> None:
        """Free the context and the model, here and on the nodes; may be called again."""
        self.context.close()
        self.placed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
