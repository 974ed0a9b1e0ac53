"""C functions of ggml's CPU backend that answer for devices of ours as well.

libllama asks some questions of every tensor at every step; a callback in Python takes microseconds
each time, which was half of the coordinator's work. Where the answer is the CPU backend's, ggml
gets that backend's own function (ggml-cpu.cpp and ggml-backend.cpp of llama-cpp-python 0.3.36).
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Final

from ringline.errors import LibraryError
from ringline.ggml.layout import BufferInterface, DeviceStruct, DeviceType
from ringline.ggml.library import load

__all__ = ["BASE_ALIGNMENT", "CpuFunctions", "cpu_functions"]

#: a buffer's context is its base where this divides it (TENSOR_ALIGNMENT).
BASE_ALIGNMENT: Final = 64


@dataclass(frozen=True, slots=True)
class CpuFunctions:
    """Addresses of C functions.

    Attributes:
        supports_op: (device, tensor) -> bool: what the CPU backend computes, on any device.
        get_base: (buffer) -> address: the buffer's context.
    """

    supports_op: int
    get_base: int


@functools.cache
def cpu_functions() -> CpuFunctions:
    """The functions, once tried.

    Raises:
        LibraryError: they are not what they were in the ggml that ringline knows.
    """
    ggml = load()
    device = ggml.backend_dev_by_type(DeviceType.CPU)
    buffer = ggml.backend_buft_alloc_buffer(ggml.backend_dev_buffer_type(device), BASE_ALIGNMENT)
    functions = CpuFunctions(
        supports_op=DeviceStruct.from_address(device).iface.supports_op,
        get_base=BufferInterface.from_address(buffer).get_base,
    )
    ggml.backend_buffer_free(buffer)
    _try(functions)
    return functions


def _try(functions: CpuFunctions) -> None:
    """Ask a buffer of ours for its base."""
    ggml = load()
    interface = BufferInterface(get_base=functions.get_base)
    base = 0x7F00_0000_0000 + BASE_ALIGNMENT
    buffer = ggml.backend_buffer_init(None, interface, ctypes.c_void_p(base), BASE_ALIGNMENT)
    found = ggml.backend_buffer_get_base(buffer)
    ggml.backend_buffer_free(buffer)
    if found != base:
        raise LibraryError(
            f"a buffer of ggml begins at {found or 0:#x} and not at its {base:#x}: it is not the "
            "ggml that ringline knows; install llama-cpp-python again, in the version that it names"
        )
