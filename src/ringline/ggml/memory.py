"""Memory by address: views without a copy, and small C structs that we own. Sizes are bytes."""

from __future__ import annotations

import ctypes
import functools
import mmap
from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["ask_for_huge_pages", "copy_out", "record_at", "view", "window"]

#: below this a mapping has few pages anyway, and rounding up to huge ones would waste memory.
_LARGE: Final = 4 << 20


def view(address: int, size: int) -> memoryview:
    """`size` writable bytes at `address`; the caller vouches that they stay mapped."""
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def copy_out(address: int, size: int) -> bytes:
    """A copy of `size` bytes at `address`."""
    return ctypes.string_at(address, size)


def record_at(address: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """One struct at `address` as an array of one record, without a copy."""
    return np.frombuffer(view(address, dtype.itemsize), dtype, 1)


def window(low: int, high: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """Structs scattered between two addresses, indexable by (address - low) >> 4.

    The view overlaps itself: one item begins at every 16th byte from `low` to `high`. Only items
    whose bytes are mapped may be read; ggml aligns its objects to 16 bytes, so each has an index.
    """
    raw = np.frombuffer(view(low, high - low + dtype.itemsize), np.uint8)
    count = ((high - low) >> 4) + 1
    return np.lib.stride_tricks.as_strided(
        raw[: dtype.itemsize].view(dtype), shape=(count,), strides=(16,), writeable=False
    )


def ask_for_huge_pages(address: int, size: int) -> bool:
    """Ask the kernel for huge pages behind large memory that nobody has touched yet.

    A decode step reads all weights once, so with pages of 4 KiB it misses the TLB all the time. It
    is a hint: where the kernel has no huge pages (left), small ones do.

    Returns:
        Whether the kernel took the hint.
    """
    advice = getattr(mmap, "MADV_HUGEPAGE", None)
    if advice is None or size < _LARGE:
        return False
    start = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE
    length = (address + size) // mmap.PAGESIZE * mmap.PAGESIZE - start
    return bool(_madvise()(start, length, advice) == 0)


@functools.cache
def _madvise() -> Any:
    """madvise(2) of the C library, for memory that no mmap object of ours stands for."""
    function = ctypes.CDLL(None).madvise
    function.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    function.restype = ctypes.c_int
    return function
