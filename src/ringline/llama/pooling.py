"""How the vectors of a text's tokens become one: what may be chosen, what a model's file says."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from ringline.errors import CallerError
from ringline.llama.model import Model

__all__ = ["Pooling", "choose_pooling"]


class Pooling(StrEnum):
    """The vector of a text: the mean over its tokens, its first token's, or its last one's."""

    MEAN = "mean"
    CLS = "cls"
    LAST = "last"

    @property
    def number(self) -> int:
        """As libllama counts (llama.h, llama_pooling_type)."""
        return _NUMBERS[self]


_NUMBERS: Final = {Pooling.MEAN: 1, Pooling.CLS: 2, Pooling.LAST: 3}
#: LLAMA_POOLING_TYPE_RANK: scores of a reranker.
_RANK: Final = 4


def choose_pooling(model: Model, wanted: Pooling | None) -> Pooling:
    """How to pool: as it is wanted, or as the model's file says, or the mean where it says nothing.

    Raises:
        CallerError: the model makes no vectors of texts.
    """
    if model.encodes_for_decoder:
        raise CallerError(
            f"{model.path.name} has an encoder that only serves its decoder: "
            "it cannot be asked for embeddings"
        )
    if wanted is not None:
        return wanted
    stated = int(model.metadata(f"{model.architecture}.pooling_type") or 0)
    if stated == _RANK:
        raise CallerError(
            f"{model.path.name} is a reranker: it scores pairs of texts and has no embeddings; "
            "--pooling cls takes its vectors all the same"
        )
    return next((pooling for pooling in Pooling if pooling.number == stated), Pooling.MEAN)
