"""C structs for devices of ours, as libllama gets them in `llama_model_params.devices`.

Nothing is registered with ggml: who does not pass these devices on does not see them. Each struct
is kept in `guard.owners` until C has given it back; devices live until their registry is closed.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Sequence

from ringline.ggml import callbacks
from ringline.ggml.guard import owners
from ringline.ggml.layout import (
    BACKEND_API_VERSION,
    BackendStruct,
    BufferTypeStruct,
    DeviceStruct,
    RegStruct,
)
from ringline.ggml.library import load
from ringline.ggml.provider import BufferProvider, DeviceProvider, StreamProvider

_log = logging.getLogger(__name__)

__all__ = ["DeviceHandle", "Registry", "buffer_behind"]


class _Named:
    """An object behind a C struct: has a name in C and passes errors on."""

    def __init__(self, name: str) -> None:
        self.c_name = ctypes.create_string_buffer(name.encode())


class _Stream(_Named):
    def __init__(self, device: DeviceHandle, provider: StreamProvider) -> None:
        super().__init__(provider.name)
        self.provider = provider
        self.fail = provider.fail
        self._struct = BackendStruct(
            guid=ctypes.addressof(callbacks.GUID), iface=callbacks.BACKEND, device=device.address
        )
        self.address = ctypes.addressof(self._struct)


class _Buffer:
    def __init__(self, provider: BufferProvider) -> None:
        self.provider = provider
        self.fail = provider.fail


class _BufferType(_Named):
    def __init__(self, device: DeviceHandle) -> None:
        super().__init__(device.provider.buffer_type_name)
        self.device = device
        self.fail = device.provider.fail
        table = callbacks.buffer_type_table(plain=device.provider.plain)
        self._struct = BufferTypeStruct(iface=table, device=device.address)
        self.address = ctypes.addressof(self._struct)
        owners[self.address] = self

    def alloc(self, size: int) -> int:
        """A ggml_backend_buffer_t, or 0. C++ makes the struct, because C++ deletes it."""
        provider = self.device.provider.alloc_buffer(size)
        if provider is None:
            return 0
        base = provider.base()
        table = callbacks.buffer_table(plain=self.device.provider.plain, base=base)
        address = int(load().backend_buffer_init(self.address, table, base, provider.size))
        owners[address] = _Buffer(provider)
        provider.born(address)
        return address


class DeviceHandle(_Named):
    """One device in C; `address` is its ggml_backend_dev_t."""

    def __init__(self, registry: Registry, provider: DeviceProvider) -> None:
        super().__init__(provider.name)
        self.c_description = ctypes.create_string_buffer(provider.description.encode())
        self.provider = provider
        self.fail = provider.fail
        table = callbacks.device_table(like_cpu=provider.like_cpu)
        self._struct = DeviceStruct(iface=table, reg=registry.address)
        self.address = ctypes.addressof(self._struct)
        owners[self.address] = self
        self.buffer_type = _BufferType(self)

    def open_stream(self) -> int:
        """A new ggml_backend_t on this device."""
        stream = _Stream(self, self.provider.open_stream())
        owners[stream.address] = stream
        return stream.address

    def release(self) -> None:
        """Forget the structs; C must not use them any more."""
        owners.pop(self.buffer_type.address, None)
        owners.pop(self.address, None)


class Registry(_Named):
    """A ggml_backend_reg for a list of devices. Close it after every model that used them."""

    def __init__(self, providers: Sequence[DeviceProvider]) -> None:
        super().__init__("ringline")
        self._struct = RegStruct(api_version=BACKEND_API_VERSION, iface=callbacks.REGISTRY)
        self.address = ctypes.addressof(self._struct)
        owners[self.address] = self
        self.devices: list[DeviceHandle] = [DeviceHandle(self, p) for p in providers]

    def fail(self, error: BaseException) -> None:
        """A registry's callbacks only look things up: an error in one is a bug of ours."""
        _log.error("a callback of the device registry failed", exc_info=error)

    def close(self) -> None:
        """Forget the structs; may be called again."""
        for device in self.devices:
            device.release()
        owners.pop(self.address, None)


def buffer_behind(address: int) -> BufferProvider | None:
    """The provider behind a ggml_backend_buffer_t, or None where the buffer is not ours."""
    owner = owners.get(address)
    return owner.provider if isinstance(owner, _Buffer) else None
