"""Embeddings: what is asked for, what comes back, and which texts are read together. Pure.

A vector is f32, little-endian; counts are tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ringline.errors import CallerError
from ringline.llama.pooling import Pooling

__all__ = [
    "DEFAULT_EMBEDDING_TOKENS",
    "Embedding",
    "EmbeddingOptions",
    "normalized",
    "packed",
    "with_embeddings",
    "writes_none",
]

#: of one text. A context that embeds computes a row of logits for each of its tokens, which nobody
#: reads: with a vocabulary of 150,000 tokens 512 rows take 300 MB where the output layer is.
DEFAULT_EMBEDDING_TOKENS: Final = 512


@dataclass(frozen=True, slots=True)
class EmbeddingOptions:
    """How an engine embeds.

    Attributes:
        pooling: how the vectors of a text's tokens become one; None: as the model's file says, and
            the mean where it says nothing.
        n_tokens: most tokens of one text; less where the model was trained for less.
    """

    pooling: Pooling | None = None
    n_tokens: int = DEFAULT_EMBEDDING_TOKENS

    def __post_init__(self) -> None:
        if self.n_tokens < 1:
            raise CallerError(f"a text to embed has at least 1 token, not {self.n_tokens}")


@dataclass(frozen=True, slots=True)
class Embedding:
    """The vector of one text.

    Attributes:
        data: its numbers, f32.
        n_tokens: tokens of the text.
    """

    data: bytes
    n_tokens: int

    @property
    def vector(self) -> NDArray[np.float32]:
        """The numbers, [n_embd_out] f32; not to be written to."""
        return np.frombuffer(self.data, "<f4")


def writes_none(name: str) -> CallerError:
    """Why an encoder continues no text; it would answer with numbers that are no logits."""
    return CallerError(
        f"{name} reads texts and writes none: ask it for embeddings (ringline api, /v1/embeddings)"
    )


def with_embeddings(n_ctx: int, options: EmbeddingOptions | None) -> int:
    """Tokens of context of an engine, those of its context for embeddings among them.

    Args:
        n_ctx: of all requests together; 0: what the model was trained for.
        options: None: it does not embed.
    """
    return n_ctx + options.n_tokens if n_ctx and options is not None else n_ctx


def normalized(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    """The vector at length 1, or as it is where it has none."""
    length = float(np.sqrt(np.sum(np.square(vector, dtype=np.float64))))
    return (vector / length).astype(np.float32) if length else vector


def packed(lengths: Sequence[int], *, n_tokens: int, n_texts: int) -> Iterator[range]:
    """Cut a row of texts into runs that are read together.

    Args:
        lengths: tokens of each; none is longer than n_tokens.
        n_tokens: most tokens of a run.
        n_texts: most texts of a run.

    Yields:
        Neighbouring numbers, in order, all of them, as few runs as that allows.
    """
    start, room = 0, n_tokens
    for index, length in enumerate(lengths):
        if length > room or index - start == n_texts:
            yield range(start, index)
            start, room = index, n_tokens
        room -= length
    if lengths:
        yield range(start, len(lengths))
