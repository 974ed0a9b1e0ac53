"""How likely a token was: the model's own distribution, before temperature, penalties or bias."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringline.engine.events import TokenLogprob
from ringline.engine.writer import Vocabulary

__all__ = ["token_logprob"]


def token_logprob(
    logits: NDArray[np.float32], token: int, n_top: int, vocabulary: Vocabulary
) -> TokenLogprob:
    """Describe a token, and the likeliest ones at its place.

    Args:
        logits: the row that it was chosen from, [n_vocab] f32; it is not changed.
        token: the one that was chosen.
        n_top: how many of the likeliest ones are wanted; 0 for none.
        vocabulary: gives the bytes of a token.
    """
    peak = logits.max()
    # Summed as f64: a vocabulary of 150,000 terms costs f32 its last three digits.
    total = float(peak) + float(np.log(np.exp(logits - peak).sum(dtype=np.float64)))
    likeliest = _likeliest(logits, n_top)

    def entry(number: int, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        piece = vocabulary.piece(number, special=True)
        return TokenLogprob(number, piece, float(logits[number]) - total, top)

    return entry(token, tuple(entry(number) for number in likeliest))


def _likeliest(logits: NDArray[np.float32], count: int) -> list[int]:
    """Numbers of the likeliest tokens, the likeliest first; of equals the lower number first."""
    count = min(count, len(logits))
    if count <= 0:
        return []
    some = np.argpartition(logits, -count)[-count:]
    order = np.lexsort((some, -logits[some]))
    return [int(number) for number in some[order]]
