"""Views, and ops that make a shape of their own: padding, pools, pictures as columns, ranges."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.server.columns import I64
from ringline.server.rules.facts import Group, Strides, every

__all__ = [
    "arange",
    "conv_2d",
    "im2col",
    "pad",
    "pad_reflect",
    "permute",
    "pool_1d",
    "pool_2d",
    "reshape",
    "timestep",
    "transpose",
    "upscale",
]

#: of a convolution's or a pool's parameters: more is a lie, and takes for ever.
_MOST: Final = 1 << 16
#: room of the CPU's kernel of CONV_2D, GGML_IM2COL_WORK_SIZE.
_COLUMNS: Final = 16 << 20
_BILINEAR: Final = 1
_BICUBIC: Final = 2
_ANTIALIAS: Final = 1 << 9
_MOST_SCALED: Final = 1 << 20
#: im2col keeps strides in a C int.
_MOST_STRIDE: Final = (1 << 31) - 1


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


def pool_1d(group: Group) -> None:
    """POOL_1D: of each row."""
    _pool(group, windows=(1,), steps=(2,), pads=(3,))
    good = every(group.source(0).ne[1:] == group.out.ne[1:])
    group.shape(good, "its result has not a row for each row")


def pool_2d(group: Group) -> None:
    """POOL_2D: of each plane."""
    _pool(group, windows=(1, 2), steps=(3, 4), pads=(5, 6))
    good = every(group.source(0).ne[2:] == group.out.ne[2:])
    group.shape(good, "its result has not a plane for each plane")


def _pool(
    group: Group, *, windows: tuple[int, ...], steps: tuple[int, ...], pads: tuple[int, ...]
) -> None:
    kind = group.word(0)
    group.param((kind == 0) | (kind == 1), "it takes neither the largest nor the mean")
    positive = group.words(*windows, *steps)
    group.param(every((positive > 0) & (positive <= _MOST)), "no window, or no step")
    padding = group.words(*pads)
    group.param(every((padding >= 0) & (padding <= _MOST)), "no such padding")


def im2col(group: Group) -> None:
    """IM2COL: what a convolution sees at each place, as a row."""
    kernel, image, flat = group.source(0), group.source(1), group.word(6) != 1
    steps, pads, spread = group.words(0, 1), group.words(2, 3), group.words(4, 5)
    used = np.stack((np.ones_like(flat), ~flat))  # the second dimension, where there is one
    sane = (steps > 0) & (spread > 0) & (pads >= 0)
    sane &= (steps <= _MOST) & (spread <= _MOST) & (pads <= _MOST)
    group.param(every(sane | ~used), "its steps and pads make no convolution")
    channels = np.where(flat, image.ne[1] == kernel.ne[1], image.ne[2] == kernel.ne[2])
    group.shape(channels & (~flat | (image.ne[3] == 1)), "its sources have different channels")
    places = _places(image.ne[:2], kernel.ne[:2], steps, pads, spread)
    group.shape(every((places > 0) | ~used), "its kernel is larger than its image")
    seen = kernel.ne[0] * kernel.ne[1] * np.where(flat, 1, kernel.ne[2])
    high, many = np.where(flat, image.ne[2], places[1]), np.where(flat, 1, image.ne[3])
    good = group.out.has_shape(seen, places[0], high, many)
    group.shape(good, "its result has not a row for each place")
    dense = flat | (image.nb[1] == image.ne[0] * image.nb[0])
    group.stride(dense & every(image.nb <= _MOST_STRIDE), "source 1: its planes have gaps")


def _places(image: I64, kernel: I64, steps: I64, pads: I64, spread: I64) -> I64:
    """How often a kernel fits, by dimension; C divides towards zero, which only matters below 1."""
    room = image + 2 * pads - spread * (kernel - 1) - 1
    places: I64 = np.where(room < 0, 0, room // np.maximum(steps, 1) + 1)
    return places


def conv_2d(group: Group) -> None:
    """CONV_2D: without columns in between."""
    kernel, image = group.source(0), group.source(1)
    steps, pads, spread = group.words(0, 1), group.words(2, 3), group.words(4, 5)
    sane = every((steps > 0) & (spread > 0) & (pads >= 0))
    sane &= every((steps <= _MOST) & (spread <= _MOST) & (pads <= _MOST))
    group.param(sane, "its steps and pads make no convolution")
    group.shape(kernel.ne[2] == image.ne[2], "its sources have different channels")
    places = _places(image.ne[:2], kernel.ne[:2], steps, pads, spread)
    good = group.out.has_shape(places[0], places[1], kernel.ne[3], image.ne[3])
    group.shape(good & every(places > 0), "its result has not a number for each place")
    seen = kernel.ne[0] * kernel.ne[1] * kernel.ne[2]
    group.shape(4 * (seen + kernel.ne[3]) <= _COLUMNS, "its kernel is too large for any place")


def upscale(group: Group) -> None:
    """UPSCALE: to any shape; places are computed as floats, which are exact enough so far."""
    flags = group.word(0)
    mode, antialias = flags & 0xFF, (flags & _ANTIALIAS) != 0
    good = (flags >= 0) & (mode <= _BICUBIC) & (~antialias | (mode == _BILINEAR))
    group.param(good, "its mode is none of three")
    largest = np.maximum(group.out.ne.max(axis=0), group.source(0).ne.max(axis=0))
    group.shape(largest <= _MOST_SCALED, f"a dimension is larger than {_MOST_SCALED}")


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
