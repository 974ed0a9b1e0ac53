"""How likely a token was, with the text of each: see llama/logprobs.py for the numbers."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ringline.engine.events import TokenLogprob
from ringline.engine.writer import Vocabulary
from ringline.llama.logprobs import RowLogprobs, row_logprobs

__all__ = ["described", "token_logprob"]


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
    return described(token, row_logprobs(logits, token, n_top), vocabulary)


def described(token: int, found: RowLogprobs, vocabulary: Vocabulary) -> TokenLogprob:
    """Give the numbers of a token their texts.

    Args:
        token: the one that was chosen.
        found: what is known of it and of the likeliest ones.
        vocabulary: gives the bytes of a token.
    """

    def entry(number: int, logprob: float, top: tuple[TokenLogprob, ...] = ()) -> TokenLogprob:
        return TokenLogprob(number, vocabulary.piece(number, special=True), logprob, top)

    likeliest = zip(found.ids.tolist(), found.logprobs.tolist(), strict=True)
    return entry(token, found.logprob, tuple(entry(*pair) for pair in likeliest))
