"""Single commands, timed at ggml's public API: what a GET and a SET cost a client and its server.

    python -m tests.peers.micro --rpc 127.0.0.1:50052        (with the stock client)

`measure` takes a device by address, so the stock client and ringline's run the very same calls of
ggml; only what stands behind the buffer differs. Prints one JSON object, medians:

    get_us    round trip of a GET_TENSOR of 64 bytes, microseconds
    set_us    a SET_TENSOR of 64 bytes, microseconds each: many, then one GET that waits for them
    bulk_gib  a SET_TENSOR of 64 MiB, GiB per second: one, then one GET that waits for it
"""

from __future__ import annotations

import argparse
import ctypes
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.peers.stock_client import connect
from tests.peers.stock_library import InitParams, Tensor, library_folder

SMALL, BULK = 64, 64 << 20
N_PIPELINED = 1000
TYPE_I8 = 24


def main() -> int:
    """Measure the first device of a server and print the figures."""
    options = parse_arguments()
    device = connect([options.rpc])[0]
    print(json.dumps(measure(device, options.repeat)))
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="time single commands of one client and server")
    parser.add_argument("--rpc", required=True, help="one endpoint")
    parser.add_argument("--repeat", type=int, default=8, help="how often each figure is taken")
    return parser.parse_args()


def measure(device: int, repeat: int) -> dict[str, float]:
    """Time GET and SET on the device at this address; see the top of the file."""
    with _remote_tensor(device) as tensor:
        tensor.set(BULK)  # the pages of both ends are mapped now
        tensor.get()
        gets = [_seconds(tensor.get) for _ in range(100 * repeat)]
        sets = [_seconds(lambda: tensor.set_many(N_PIPELINED)) for _ in range(repeat)]
        bulks = [_seconds(lambda: tensor.set_many(1, BULK)) for _ in range(repeat)]
    return {
        "get_us": 1e6 * statistics.median(gets),
        "set_us": 1e6 * statistics.median(sets) / N_PIPELINED,
        "bulk_gib": BULK / 2**30 / statistics.median(bulks),
    }


def _seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


class _RemoteTensor:
    """A tensor of 64 MiB in a remote buffer that holds nothing else.

    Its buffer is none of weights, so that the stock client sends data and never asks by hash.
    """

    def __init__(self, ggml: ctypes.CDLL, address: ctypes._Pointer[Tensor]) -> None:
        self._ggml, self._address = ggml, address
        self._data = ctypes.create_string_buffer(bytes(range(256)) * (BULK // 256), BULK)
        self._read = ctypes.create_string_buffer(SMALL)

    def set(self, size: int = SMALL) -> None:
        """Write the first `size` bytes."""
        self._ggml.ggml_backend_tensor_set(self._address, self._data, 0, size)

    def get(self) -> None:
        """Read the first 64 bytes."""
        self._ggml.ggml_backend_tensor_get(self._address, self._read, 0, SMALL)

    def set_many(self, count: int, size: int = SMALL) -> None:
        """Write `count` times and wait until the server has done it."""
        for _ in range(count):
            self.set(size)
        self.get()
        if self._read.raw != self._data[:SMALL]:
            raise ValueError("what was read is not what was written")


@contextmanager
def _remote_tensor(device: int) -> Iterator[_RemoteTensor]:
    ggml = _load()
    context = ggml.ggml_init(InitParams(1 << 16, None, True))
    tensor = ggml.ggml_new_tensor_1d(context, TYPE_I8, BULK)
    buffer = ggml.ggml_backend_alloc_ctx_tensors_from_buft(
        context, ggml.ggml_backend_dev_buffer_type(device)
    )
    if not buffer:
        raise MemoryError("the server has no room for 64 MiB")
    yield _RemoteTensor(ggml, tensor)
    ggml.ggml_backend_buffer_free(buffer)
    ggml.ggml_free(context)


def _load() -> ctypes.CDLL:
    """libggml-base with the functions that are timed, whichever client stands behind them."""
    ggml = ctypes.CDLL(str(library_folder() / "libggml-base.so.0"))
    tensor, size = ctypes.POINTER(Tensor), ctypes.c_size_t
    for name, result, arguments in (
        ("ggml_init", ctypes.c_void_p, [InitParams]),
        ("ggml_free", None, [ctypes.c_void_p]),
        ("ggml_new_tensor_1d", tensor, [ctypes.c_void_p, ctypes.c_int, ctypes.c_int64]),
        ("ggml_backend_dev_buffer_type", ctypes.c_void_p, [ctypes.c_void_p]),
        ("ggml_backend_alloc_ctx_tensors_from_buft", ctypes.c_void_p, [ctypes.c_void_p] * 2),
        ("ggml_backend_buffer_free", None, [ctypes.c_void_p]),
        ("ggml_backend_tensor_set", None, [tensor, ctypes.c_char_p, size, size]),
        ("ggml_backend_tensor_get", None, [tensor, ctypes.c_char_p, size, size]),
    ):
        function = getattr(ggml, name)
        function.restype, function.argtypes = result, arguments
    return ggml


if __name__ == "__main__":
    sys.exit(main())
