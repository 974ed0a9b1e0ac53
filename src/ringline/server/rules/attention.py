"""Attention: positions, masks, softmax, and all of it in one op."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.server.rules.facts import Group, every

__all__ = ["flash_attn", "lightning_indexer", "rope", "soft_max"]

_NORMAL: Final = 0
_NEOX: Final = 2
_MROPE: Final = 8
_VISION: Final = 24
_IMROPE: Final = 40
_MODES: Final = (_NORMAL, _NEOX, _MROPE, _VISION, _IMROPE)
_PRECISIONS: Final = (0, 10)


def rope(group: Group) -> None:
    """ROPE and ROPE_BACK: positions and factors for what is turned, and sane numbers of dimensions.

    Turning no dimension at all would not end; an odd row would be read past its end.
    """
    source, positions, factors = group.source(0), group.source(1), group.source(2)
    n_dims, mode, offset = group.word(1), group.word(2), group.word(15)
    known = np.logical_or.reduce([mode == number for number in _MODES])  # isin() costs much more
    group.param(known, f"its mode is none of {_MODES}")
    width = source.ne[0]
    even = (n_dims % 2 == 0) & (offset % 2 == 0) & (width % 2 == 0)
    within = (n_dims > 0) & (offset >= 0) & (n_dims + offset <= width)
    group.param(even & within, "the dimensions that it turns are not in the row")
    many = (mode & _MROPE) != 0
    needed = source.ne[2] * np.where(many, 4, 1)
    group.shape(positions.has_shape(needed), "source 1 has not a position for each token")
    group.shape(~factors.given | (factors.ne[0] >= n_dims // 2), "source 2 has too few factors")
    vision = mode == _VISION
    group.param(~vision | ((n_dims == width // 2) & (offset == 0)), "it does not turn half a row")
    if many.any():
        sections = group.words(11, 12, 13, 14)
        total = sections.sum(axis=0)
        good = every(sections >= 0) & (sections[:3].sum(axis=0) > 0) & (total <= width)
        group.param(good | ~many, "its sections do not fit its row")


def soft_max(group: Group) -> None:
    """SOFT_MAX: a mask that covers its source, a sink for each head."""
    source, mask, sinks = group.source(0), group.source(1), group.source(2)
    covers = (mask.ne[0] == source.ne[0]) & (mask.ne[1] >= source.ne[1])
    repeats = every(source.ne[2:] % np.maximum(mask.ne[2:], 1) == 0)
    group.shape((covers & repeats) | ~mask.given, "source 1, the mask, does not cover source 0")
    group.param((group.real(1) <= 0) | mask.given, "it has a bias and no mask")
    group.shape(
        ~sinks.given | sinks.has_shape(source.ne[2]), "source 2 has not a sink for each head"
    )


def flash_attn(group: Group) -> None:
    """FLASH_ATTN_EXT: queries, keys, values, maybe a mask and sinks."""
    query, key, value = group.source(0), group.source(1), group.source(2)
    mask, sinks = group.source(3), group.source(4)
    group.shape(query.ne[0] == key.ne[0], "queries and keys have rows of different length")
    group.shape(key.ne[1] == value.ne[1], "there are not as many keys as values")
    heads = np.maximum(np.stack((key.ne[2], value.ne[2])), 1)
    group.shape(every(query.ne[2] % heads == 0), "its heads cannot be shared")
    group.shape((query.ne[3] == key.ne[3]) & (query.ne[3] == value.ne[3]), "its streams differ")
    good = group.out.has_shape(value.ne[0], query.ne[2], query.ne[1], query.ne[3])
    group.shape(good, "its result has not the shape of attention")
    covers = (mask.ne[0] >= key.ne[1]) & (mask.ne[1] >= query.ne[1])
    repeats = every(query.ne[2:] % np.maximum(mask.ne[2:], 1) == 0)
    group.shape((covers & repeats) | ~mask.given, "source 3, the mask, does not cover the keys")
    group.param((group.real(1) <= 0) | mask.given, "it has a bias and no mask")
    precision = group.word(3)
    known = np.logical_or.reduce([precision == number for number in _PRECISIONS])
    group.param(known, f"its precision is none of {_PRECISIONS}")
    group.param(group.word(4) >= 0, "its number of keys is negative")
    good = ~sinks.given | sinks.has_shape(query.ne[2])
    group.shape(good, "source 4 has not a sink for each head")


def lightning_indexer(group: Group) -> None:
    """LIGHTNING_INDEXER: scores of keys for sparse attention."""
    query, key, weights, mask = (group.source(number) for number in range(4))
    rows = (query.ne[0] == key.ne[0]) & (key.ne[1] == 1) & (query.ne[3] == key.ne[3])
    group.shape(rows, "queries and keys do not fit each other")
    group.shape(
        weights.has_shape(query.ne[1], query.ne[2], 1, query.ne[3]),
        "source 2 has not a weight for each head and token",
    )
    covers = (mask.ne[0] == key.ne[2]) & (mask.ne[1] == query.ne[2]) & (mask.ne[2] == 1)
    repeats = weights.ne[3] % np.maximum(mask.ne[3], 1) == 0
    group.shape(covers & repeats, "source 3, the mask, does not cover the keys")
    good = group.out.has_shape(key.ne[2], query.ne[2], 1, query.ne[3])
    group.shape(good, "its result has not a score for each key and token")
