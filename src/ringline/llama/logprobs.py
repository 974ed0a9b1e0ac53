"""How likely the tokens of a row are: the model's own distribution, before any sampler.

Pure: loads no library.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowLogprobs", "row_logprobs"]


@dataclass(frozen=True, slots=True, eq=False)
class RowLogprobs:
    """Natural logarithms of probabilities, as f32: the same number wherever it was computed.

    Attributes:
        logprob: of the token that was asked for.
        ids: the likeliest tokens, [n] i32, the likeliest first.
        logprobs: theirs, [n] f32.
    """

    logprob: float
    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]


def row_logprobs(logits: NDArray[np.float32], token: int, n_top: int) -> RowLogprobs:
    """Describe a token, and the likeliest ones at its place.

    Args:
        logits: the row that it was chosen from, [n_vocab] f32; it is not changed.
        token: the one that was chosen.
        n_top: how many of the likeliest ones are wanted; 0 for none.
    """
    peak = logits.max()
    # Summed as f64: a vocabulary of 150,000 terms costs f32 its last three digits.
    total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    ids = _likeliest(logits, n_top)
    some = logits[np.append(ids, np.int32(token))].astype(np.float64) - total
    logprobs = some.astype(np.float32)
    return RowLogprobs(float(logprobs[-1]), ids, logprobs[:-1])


def _likeliest(logits: NDArray[np.float32], count: int) -> NDArray[np.int32]:
    """Numbers of the likeliest tokens, the likeliest first; of equals the lower number first."""
    count = min(count, len(logits))
    if count <= 0:
        return np.zeros(0, np.int32)
    some = np.argpartition(logits, -count)[-count:]
    order = np.lexsort((some, -logits[some]))
    return some[order].astype(np.int32)
