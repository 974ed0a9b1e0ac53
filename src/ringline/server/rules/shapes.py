"""Views, and ops that make a shape of their own: padding, ranges."""

from __future__ import annotations

import numpy as np

from ringline.server.columns import I64
from ringline.server.rules.facts import Group, Strides, every

__all__ = [
    "arange",
    "pad",
    "pad_reflect",
    "permute",
    "reshape",
    "timestep",
    "transpose",
]


def reshape(group: Group) -> None:
    """RESHAPE: as many elements, without gaps."""
    good = group.out.count == group.source(0).count
    group.shape(good, "its result has not as many elements as its source")
    group.stride((group.made_strides() & Strides.PACKED) > 0, "its result is not contiguous")


def transpose(group: Group) -> None:
    """TRANSPOSE: the first two dimensions change places."""
    source, out, order = group.source(0), group.out, [1, 0, 2, 3]
    good = every(out.ne == source.ne[order]) & every(out.nb == source.nb[order])
    group.shape(good, "its result is not its source transposed")


def permute(group: Group) -> None:
    """PERMUTE: the dimensions change places as op_params say."""
    source, out = group.source(0), group.out
    axes: I64 = group.words(0, 1, 2, 3)
    group.param(every(np.sort(axes, axis=0) == np.arange(4)[:, None]), "no permutation")
    nodes = np.arange(len(group.nodes))
    good = (out.ne[axes, nodes] == source.ne) & (out.nb[axes, nodes] == source.nb)
    group.shape(every(good), "its result is not its source permuted")


def pad(group: Group) -> None:
    """PAD: zeros, or the source again, on each side of each dimension."""
    source, out = group.source(0), group.out
    sides: I64 = group.words(*range(8))
    before, after = sides[0::2], sides[1::2]
    group.param(every(sides >= 0), "it pads by less than nothing")
    around = (group.word(8) == 0) | every((before <= source.ne) & (after <= source.ne))
    group.param(around, "it goes round more than once")
    good = every(out.ne == source.ne + before + after)
    group.shape(good, "its result is not its source with padding")


def pad_reflect(group: Group) -> None:
    """PAD_REFLECT_1D: rows go on as in a mirror."""
    source, left, right = group.source(0), group.word(0), group.word(1)
    width = source.ne[0]
    good = (left >= 0) & (right >= 0) & (left < width) & (right < width)
    group.param(good, "it pads by more than there is to reflect")
    good = group.out.has_shape(width + left + right, source.ne[1], source.ne[2], source.ne[3])
    group.shape(good, "its result is not its source with padding")


def arange(group: Group) -> None:
    """ARANGE: as many numbers as there are steps."""
    start, stop, step = (group.real(number) for number in range(3))
    with np.errstate(all="ignore"):
        n_steps = np.ceil((stop - start) / step).astype(np.float64)
    good = np.isfinite(n_steps) & (n_steps == group.out.count)
    group.shape(good, "its result has not a number for each step")


def timestep(group: Group) -> None:
    """TIMESTEP_EMBEDDING."""
    width = group.word(0)
    group.param(width > 0, "its width is not positive")
    good = group.out.has_shape(width, group.source(0).ne[0])
    group.shape(good, "its result has not a row for each time")
