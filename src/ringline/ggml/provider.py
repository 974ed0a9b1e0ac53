"""What Python objects must offer to stand behind ggml's callback tables (callbacks.py).

Tensors, graphs and streams come as addresses (ints); sizes and offsets are bytes. A method that
raises does no harm to C: the guard hands the error to `fail` and C gets the fallback named here.
"""

from __future__ import annotations

from typing import Protocol

__all__ = ["BufferProvider", "DeviceProvider", "StreamProvider"]


class _Owner(Protocol):
    def fail(self, error: BaseException) -> None:
        """Remember an error that a callback could not raise into C."""


class BufferProvider(_Owner, Protocol):
    """One buffer on a device."""

    @property
    def size(self) -> int:
        """Bytes."""

    def born(self, address: int) -> None:
        """The ggml_backend_buffer_t that stands for this buffer has been made."""

    def base(self) -> int:
        """Address where the buffer begins; tensors' data lie behind it.

        Must not fail: ggml ends the process at address 0.
        """

    def free(self) -> None:
        """The buffer is not used any more."""

    def init_tensor(self, tensor: int) -> None:
        """Prepare a tensor. Fallback: GGML_STATUS_FAILED."""

    def fill(self, tensor: int, value: int, offset: int, size: int) -> None:
        """Set a range of a tensor to one byte value."""

    def set(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Write a range of a tensor from memory at `data`."""

    def get(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Read a range of a tensor into memory at `data`."""

    def copy_from(self, src: int, dst: int) -> bool:
        """Copy tensor `src` (any buffer) to `dst` (this buffer); False: not possible here."""

    def clear(self, value: int) -> None:
        """Set the whole buffer to one byte value."""


class StreamProvider(_Owner, Protocol):
    """One stream of work on a device (ggml calls it a backend)."""

    @property
    def name(self) -> str:
        """For people."""

    def close(self) -> None:
        """The stream is not used any more."""

    def set_async(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Queue a write; `data` may change as soon as this returns."""

    def get_async(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Queue a read into memory at `data`, complete after synchronize()."""

    def copy_async(self, source: StreamProvider | None, src: int, dst: int) -> bool:
        """Queue a copy from another stream (None: one that is not ours); False: not possible."""

    def synchronize(self) -> None:
        """Wait until everything queued is done."""

    def compute(self, graph: int) -> None:
        """Queue a graph. Fallback: GGML_STATUS_FAILED."""


class DeviceProvider(_Owner, Protocol):
    """One device."""

    @property
    def name(self) -> str:
        """Short: RPC0."""

    @property
    def description(self) -> str:
        """For people."""

    @property
    def buffer_type_name(self) -> str:
        """Name of its buffers, for people."""

    @property
    def plain(self) -> bool:
        """Whether a tensor takes ggml_nbytes and needs no preparation: libllama does not ask."""

    @property
    def like_cpu(self) -> bool:
        """Whether it computes what this machine's CPU backend does: supports_op is not asked."""

    @property
    def alignment(self) -> int:
        """Alignment of tensors in its buffers."""

    @property
    def max_size(self) -> int:
        """Largest buffer."""

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""

    def supports_op(self, tensor: int) -> bool:
        """Whether it can compute the op of a tensor. Fallback True."""

    def alloc_size(self, tensor: int) -> int:
        """Bytes a tensor needs in a buffer. Fallback: ggml_nbytes."""

    def alloc_buffer(self, size: int) -> BufferProvider | None:
        """A new buffer; None: no room."""

    def open_stream(self) -> StreamProvider:
        """A new stream."""
