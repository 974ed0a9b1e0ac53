"""Data of one tensor in and out of its buffer, by ggml's own functions. Sizes are bytes.

The caller has checked all bounds: ggml answers a wrong one with abort(). For host buffers reading
and writing memory in place is cheaper; these work for every device.
"""

from __future__ import annotations

import ctypes

from ringline.ggml.devices import TensorStruct
from ringline.ggml.library import load

__all__ = ["copy_tensor", "get_tensor", "memset_tensor", "set_tensor"]


def set_tensor(tensor: TensorStruct, data: bytearray, size: int, offset: int) -> None:
    """Write the first `size` bytes of `data` at `offset` of the tensor."""
    load().backend_tensor_set(tensor.address, _address(data), offset, size)


def get_tensor(tensor: TensorStruct, size: int, offset: int) -> bytearray:
    """Read `size` bytes at `offset` of the tensor."""
    data = bytearray(size)
    load().backend_tensor_get(tensor.address, _address(data), offset, size)
    return data


def memset_tensor(tensor: TensorStruct, value: int, size: int, offset: int) -> None:
    """Fill `size` bytes at `offset` of the tensor with one byte value."""
    load().backend_tensor_memset(tensor.address, value, offset, size)


def copy_tensor(src: TensorStruct, dst: TensorStruct) -> bool:
    """Copy all of `src` to `dst`; False where the device cannot do it directly."""
    return bool(load().backend_buffer_copy_tensor(src.address, dst.address))


def _address(data: bytearray) -> int | None:
    """Where the bytes of `data` are; it must not be resized while C uses them."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) if data else None
