"""Devices, backends and buffers of this machine, as owning handles.

A handle's close() may be called again and never raises. Addresses are ints. Sizes are bytes.
"""

from __future__ import annotations

import ctypes
import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.errors import CallerError, LibraryError
from ringline.ggml.layout import TENSOR, DeviceType, Status
from ringline.ggml.library import load
from ringline.ggml.memory import ask_for_huge_pages, view

__all__ = [
    "Backend",
    "Buffer",
    "Device",
    "TensorStruct",
    "cpu_device",
    "find_devices",
    "is_host_buffer",
]

_SET_THREADS: Final = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)


class TensorStruct:
    """One ggml_tensor in memory of our own, for calls that take a tensor."""

    __slots__ = ("_memory", "address", "record")

    def __init__(self) -> None:
        self._memory: npt.NDArray[np.void] = np.zeros(1, TENSOR)
        #: the struct; assign its fields by name.
        self.record: np.void = self._memory[0]
        self.address: int = self._memory.ctypes.data


@dataclass(frozen=True, slots=True)
class Device:
    """One ggml device. `kind` is the name of the backend it belongs to: CPU, CUDA, Vulkan..."""

    address: int
    name: str
    description: str
    kind: str
    type: DeviceType

    @classmethod
    def at(cls, address: int) -> Device:
        """Describe the ggml_backend_dev_t at `address`."""
        ggml = load()
        return cls(
            address=address,
            name=ggml.backend_dev_name(address).decode(),
            description=ggml.backend_dev_description(address).decode().strip(),
            kind=ggml.backend_reg_name(ggml.backend_dev_backend_reg(address)).decode(),
            type=DeviceType(ggml.backend_dev_type(address)),
        )

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        load().backend_dev_memory(self.address, ctypes.byref(free), ctypes.byref(total))
        return free.value, total.value

    def alignment(self) -> int:
        """Alignment of tensors in its buffers."""
        return int(load().backend_buft_get_alignment(self._buffer_type()))

    def max_size(self) -> int:
        """Largest buffer that it can make."""
        return int(load().backend_buft_get_max_size(self._buffer_type()))

    def alloc_size(self, tensor: TensorStruct) -> int:
        """Bytes that a tensor needs in a buffer of this device."""
        return int(load().backend_buft_get_alloc_size(self._buffer_type(), tensor.address))

    def supports_op(self, tensor: int) -> bool:
        """Whether it can compute the op of the ggml_tensor at address `tensor`."""
        return bool(load().backend_dev_supports_op(self.address, tensor))

    def alloc_buffer(self, size: int) -> Buffer | None:
        """A buffer of at least `size` bytes, or None where there is no room."""
        address = load().backend_buft_alloc_buffer(self._buffer_type(), size)
        if not address:
            return None
        buffer = Buffer(address, host=self._is_host())
        if buffer.host:
            ask_for_huge_pages(buffer.base, buffer.size)
        return buffer

    def open(self, n_threads: int) -> Backend:
        """A backend (one stream of computations) on this device.

        Raises:
            LibraryError: the device cannot be started.
        """
        address = load().backend_dev_init(self.address, None)
        if not address:
            raise LibraryError(f"device {self.name} ({self.description}) cannot be started")
        backend = Backend(address)
        backend.set_threads(self, n_threads)
        return backend

    def _buffer_type(self) -> int:
        return int(load().backend_dev_buffer_type(self.address))

    def _is_host(self) -> bool:
        return bool(load().backend_buft_is_host(self._buffer_type()))


class Backend:
    """An owned ggml_backend_t. Compute from one thread only: each has a thread team of its own."""

    def __init__(self, address: int) -> None:
        self._address = address

    def set_threads(self, device: Device, n_threads: int) -> None:
        """Set the number of threads where the device has such a setting (CPU)."""
        ggml = load()
        reg = ggml.backend_dev_backend_reg(device.address)
        function = ggml.backend_reg_get_proc_address(reg, b"ggml_backend_set_n_threads")
        if function:
            _SET_THREADS(function)(self._address, n_threads)

    def compute(self, graph: int) -> Status:
        """Compute the ggml_cgraph at address `graph` and wait for the result."""
        return Status(load().backend_graph_compute(self._address, graph))

    def close(self) -> None:
        """Free the backend."""
        if self._address:
            load().backend_free(self._address)
            self._address = 0


class Buffer:
    """An owned ggml_backend_buffer_t. `host` buffers can be read and written in place."""

    def __init__(self, address: int, *, host: bool) -> None:
        ggml = load()
        self.address = address
        self.host = host
        self.base = int(ggml.backend_buffer_get_base(address) or 0)
        self.size = int(ggml.backend_buffer_get_size(address))

    def clear(self, value: int) -> None:
        """Fill it with one byte value."""
        load().backend_buffer_clear(self.address, value)

    def init_tensor(self, tensor: TensorStruct) -> Status:
        """Let the buffer prepare a tensor."""
        return Status(load().backend_buffer_init_tensor(self.address, tensor.address))

    def view(self, address: int, size: int) -> memoryview:
        """Memory of a host buffer; the caller has checked the bounds."""
        return view(address, size)

    def close(self) -> None:
        """Free the buffer."""
        if self.address:
            load().backend_buffer_free(self.address)
            self.address = 0


def find_devices(names: list[str] | None = None) -> list[Device]:
    """The named devices, or as ggml-rpc-server does: all accelerators, else the CPU.

    Raises:
        CallerError: a name is unknown; lists what there is.
    """
    ggml = load()
    ggml.backend_load_all()
    present = [Device.at(ggml.backend_dev_get(i)) for i in range(ggml.backend_dev_count())]
    if names:
        by_name = {device.name.lower(): device for device in present}
        for name in names:
            if name.lower() not in by_name:
                have = ", ".join(device.name for device in present)
                raise CallerError(f"there is no device {name!r} here; this machine has: {have}")
        return [by_name[name.lower()] for name in names]
    fast = [d for d in present if d.type not in (DeviceType.CPU, DeviceType.ACCEL)]
    return fast or [d for d in present if d.type is DeviceType.CPU]


@functools.cache
def cpu_device() -> Device:
    """The CPU device of this machine."""
    return Device.at(load().backend_dev_by_type(DeviceType.CPU))


def is_host_buffer(address: int) -> bool:
    """Whether the ggml_backend_buffer_t at `address` is memory that can be read in place; 0: no."""
    return bool(address) and bool(load().backend_buffer_is_host(address))
