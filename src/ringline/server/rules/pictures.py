"""Pictures and sound: convolutions and their columns, pools, windows, other sizes."""

from __future__ import annotations

from typing import Final

import numpy as np

from ringline.server.columns import I64
from ringline.server.rules.facts import Group, Operand, every

__all__ = [
    "col2im_1d",
    "conv_2d",
    "conv_2d_dw",
    "im2col",
    "pool_1d",
    "pool_2d",
    "upscale",
    "win_part",
    "win_unpart",
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
#: of a picture that is cut into windows.
_MOST_SIDE: Final = 1 << 15


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
    group.shape(kernel.ne[2] == image.ne[2], "its sources have different channels")
    _convolution(group, n_channels=kernel.ne[3])
    seen = kernel.ne[0] * kernel.ne[1] * kernel.ne[2]
    group.shape(4 * (seen + kernel.ne[3]) <= _COLUMNS, "its kernel is too large for any place")


def conv_2d_dw(group: Group) -> None:
    """CONV_2D_DW: each channel by itself; only in the usual order of dimensions."""
    kernel, image = group.source(0), group.source(1)
    good = (kernel.ne[2] == 1) & (kernel.ne[3] == image.ne[2])
    group.shape(good, "its kernel has not one plane for each channel")
    _convolution(group, n_channels=image.ne[2])


def _convolution(group: Group, *, n_channels: I64) -> None:
    kernel, image = group.source(0), group.source(1)
    steps, pads, spread = group.words(0, 1), group.words(2, 3), group.words(4, 5)
    sane = every((steps > 0) & (spread > 0) & (pads >= 0))
    sane &= every((steps <= _MOST) & (spread <= _MOST) & (pads <= _MOST))
    group.param(sane, "its steps and pads make no convolution")
    places = _places(image.ne[:2], kernel.ne[:2], steps, pads, spread)
    good = group.out.has_shape(places[0], places[1], n_channels, image.ne[3])
    group.shape(good & every(places > 0), "its result has not a number for each place")


def col2im_1d(group: Group) -> None:
    """COL2IM_1D: overlapping columns are added up to a signal."""
    columns, step, n_channels, cut = group.source(0), group.word(0), group.word(1), group.word(2)
    sane = (step > 0) & (step <= _MOST) & (n_channels > 0) & (cut >= 0) & (cut <= _MOST)
    group.param(sane, "its steps and channels make no signal")
    group.shape((columns.ne[2] == 1) & (columns.ne[3] == 1), "its source is no matrix")
    whole = columns.ne[0] % n_channels == 0
    group.shape(whole, "its source has no whole column for each channel")
    length = (columns.ne[1] - 1) * step + columns.ne[0] // n_channels - 2 * cut
    good = (length > 0) & group.out.has_shape(length, n_channels)
    group.shape(good, "its result has not a number for each time")


def win_part(group: Group) -> None:
    """WIN_PART: a picture becomes windows."""
    picture, side = group.source(0), group.word(2)
    across, down = _windows(group, picture, side)
    group.param((group.word(0) == across) & (group.word(1) == down), "its windows do not cover it")
    good = group.out.has_shape(picture.ne[0], side, side, across * down)
    group.shape(good, "its result has not a window for each part")


def win_unpart(group: Group) -> None:
    """WIN_UNPART: windows become a picture."""
    windows, picture, side = group.source(0), group.out, group.word(0)
    across, down = _windows(group, picture, side)
    good = windows.has_shape(picture.ne[0], side, side, across * down)
    group.shape(good, "its source has not a window for each part")


def _windows(group: Group, picture: Operand, side: I64) -> tuple[I64, I64]:
    """How many windows a picture has across and down; the kernel counts them in C ints."""
    group.param((side > 0) & (side <= _MOST_SIDE), "no window")
    good = (picture.ne[3] == 1) & every(picture.ne[1:3] <= _MOST_SIDE)
    group.shape(good, f"more than one picture, or a side of more than {_MOST_SIDE}")
    return -(-picture.ne[1] // side), -(-picture.ne[2] // side)


def upscale(group: Group) -> None:
    """UPSCALE: to any shape; places are computed as floats, which are exact enough so far."""
    flags = group.word(0)
    mode, antialias = flags & 0xFF, (flags & _ANTIALIAS) != 0
    good = (flags >= 0) & (mode <= _BICUBIC) & (~antialias | (mode == _BILINEAR))
    group.param(good, "its mode is none of three")
    largest = np.maximum(group.out.ne.max(axis=0), group.source(0).ne.max(axis=0))
    group.shape(largest <= _MOST_SCALED, f"a dimension is larger than {_MOST_SCALED}")
