"""Tokens that are wanted of a decode, and what came of each; chosen here, from the logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringline.errors import RinglineError
from ringline.llama.logprobs import RowLogprobs, row_logprobs
from ringline.llama.sampler import Sampler

__all__ = ["Choice", "Wanted", "choose"]


@dataclass(frozen=True, slots=True)
class Wanted:
    """A token that is wanted of a batch.

    Attributes:
        index: in the batch, of the token that it follows; -1 is the last one with logits.
        sampler: chooses it, and counts it as seen.
        n_top: how many of the likeliest tokens are described beside it; None: no logprobs at all.
    """

    index: int
    sampler: Sampler
    n_top: int | None = None


@dataclass(frozen=True, slots=True)
class Choice:
    """What a sampler chose.

    Attributes:
        token: the token; -1 where there is none.
        error: why there is none; it concerns this text alone.
        logprobs: how likely it was, where that was wanted.
    """

    token: int = -1
    error: RinglineError | None = None
    logprobs: RowLogprobs | None = None

    def checked(self) -> int:
        """The token.

        Raises:
            RinglineError: there is none.
        """
        if self.error is not None:
            raise self.error
        return self.token


def choose(logits: NDArray[np.float32], wanted: Wanted) -> Choice:
    """Let a sampler choose from a row, [n_vocab] f32."""
    try:
        token = wanted.sampler.choose(logits)
    except RinglineError as error:
        return Choice(error=error)
    described = None if wanted.n_top is None else row_logprobs(logits, token, wanted.n_top)
    return Choice(token, logprobs=described)
