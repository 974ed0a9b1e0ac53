"""A stock client that sends every base command once or more, and says what it meant by each.

    python -m tests.peers.exercise 127.0.0.1:50052        (capture.py does, through the recorder)

It drives libggml-rpc through ggml's public C API. Prints a JSON list in the order of the wire:
`{"name", "command", "request": {field: value}, "reply": {field: value} or null}`. The values come
from the arguments of the calls, from what they returned and from ggml's own structs in memory; no
encoder of the protocol has a part in them. Bytes are hex.
"""

from __future__ import annotations

import ctypes
import json
import struct
import sys
from ctypes import byref, c_int64, c_size_t
from typing import TYPE_CHECKING

from tests.peers.meaning import Fields, as_pointer, fnv_1a, graph_fields, handle, tensor_fields
from tests.peers.stock_library import (
    TYPE_F16,
    TYPE_F32,
    TYPE_Q8_0,
    USAGE_WEIGHTS,
    Buffer,
    InitParams,
    load,
)

if TYPE_CHECKING:
    from tests.peers.meaning import TensorPointer

NO_CAPS = bytes(24).hex()
COMPUTE_SIZE, BIG_SIZE = 1 << 16, (10 << 20) + 64  # above 10 MiB the stock client asks by hash


def main() -> int:
    """Send everything to the server named on the command line."""
    exercise = Exercise(sys.argv[1])
    exercise.open()
    exercise.weights()
    exercise.compute()
    exercise.close()
    print(json.dumps(exercise.meanings))
    return 0


class Exercise:
    """One stock client with one device, its two buffers and its tensors."""

    def __init__(self, endpoint: str) -> None:
        libraries = load()
        self.ggml, self.rpc = libraries.base, libraries.rpc
        self.endpoint = endpoint.encode()
        self.meanings: list[Fields] = []
        self.context = self.ggml.ggml_init(InitParams(1 << 20, None, True))

    def meant(self, name: str, command: str, request: Fields, reply: Fields | None = None) -> None:
        """Note what the frames that have just been exchanged mean."""
        meaning = {"name": name, "command": command, "request": request, "reply": reply}
        self.meanings.append(meaning)

    def open(self) -> None:
        """HELLO, DEVICE_COUNT, GET_ALIGNMENT, GET_MAX_SIZE, GET_DEVICE_MEMORY."""
        self.backend = self.rpc.ggml_backend_rpc_init(self.endpoint, 0)
        version = {"major": 7, "minor": 0, "patch": 0, "padding": 0}  # as ggml-rpc.h has it
        self.meant("hello", "HELLO", {"caps": NO_CAPS}, {**version, "caps": NO_CAPS})
        registry = self.rpc.ggml_backend_rpc_add_server(self.endpoint)
        count = self.ggml.ggml_backend_reg_dev_count(registry)
        self.meant("device_count", "DEVICE_COUNT", {}, {"count": count})
        self.type = self.rpc.ggml_backend_rpc_buffer_type(self.endpoint, 0)
        alignment = self.ggml.ggml_backend_buft_get_alignment(self.type)
        self.meant("get_alignment", "GET_ALIGNMENT", {"device": 0}, {"alignment": alignment})
        most = self.ggml.ggml_backend_buft_get_max_size(self.type)
        self.meant("get_max_size", "GET_MAX_SIZE", {"device": 0}, {"max_size": most})
        free, total = c_size_t(), c_size_t()
        self.rpc.ggml_backend_rpc_get_device_memory(self.endpoint, 0, byref(free), byref(total))
        memory = {"free": free.value, "total": total.value}
        self.meant("get_device_memory", "GET_DEVICE_MEMORY", {"device": 0}, memory)

    def weights(self) -> None:
        """A buffer of weights: INIT_TENSOR, GET_ALLOC_SIZE, SET_TENSOR and SET_TENSOR_HASH."""
        self.no_room()
        self.weight_buffer, base = self.alloc("weights", COMPUTE_SIZE + BIG_SIZE)
        self.ggml.ggml_backend_buffer_set_usage(self.weight_buffer, USAGE_WEIGHTS)
        self.weight = self.tensor("weight", TYPE_Q8_0, 32, 16)
        self.ask_size("weight", self.weight)
        self.place(self.weight, self.weight_buffer, base)
        self.meant("init_tensor", "INIT_TENSOR", {"tensor": tensor_fields(self.weight)})
        blocks = (struct.pack("<e32b", 0.25, *range(row - 16, row + 16)) for row in range(16))
        self.set("weight", self.weight, b"".join(blocks))
        big = self.tensor("big", TYPE_F32, BIG_SIZE // 4)
        self.place(big, self.weight_buffer, base + COMPUTE_SIZE)
        self.set_big(big)

    def compute(self) -> None:
        """A buffer to compute in, everything that reads and writes it, and a graph, twice."""
        self.compute_buffer, base = self.alloc("compute", COMPUTE_SIZE)
        self.ggml.ggml_backend_buffer_clear(self.compute_buffer, 0x5A)
        clear = {"handle": handle(self.compute_buffer), "value": 0x5A}
        self.meant("buffer_clear", "BUFFER_CLEAR", clear)
        x = self.tensor("x", TYPE_F32, 32, 4)
        copy = self.tensor("copy of x", TYPE_F32, 32, 4)
        self.place(x, self.compute_buffer, base)
        self.place(copy, self.compute_buffer, base + 1024)
        self.set("x", x, struct.pack("<128f", *(n / 8 for n in range(128))))
        self.set("part_of_x", x, struct.pack("<4f", -1, -2, -3, -4), offset=256)
        self.memset(x, value=0, offset=384, size=128)
        self.get("x", x, offset=240, size=64)
        self.copy(x, copy)
        self.get("copy", copy, offset=0, size=512)
        self.ask_size("attention", self.attention())
        self.graph(x, base + 2048)

    def close(self) -> None:
        """FREE_BUFFER for both buffers; then the connection ends."""
        for name in ("compute", "weight"):
            buffer = getattr(self, f"{name}_buffer")
            request = {"handle": handle(buffer)}
            self.ggml.ggml_backend_buffer_free(buffer)
            self.meant(f"free_buffer_{name}", "FREE_BUFFER", request)
        self.ggml.ggml_backend_free(self.backend)
        self.ggml.ggml_free(self.context)

    def tensor(self, name: str, type_: int, *ne: int) -> TensorPointer:
        """A tensor without data."""
        shape = (c_int64 * len(ne))(*ne)
        tensor: TensorPointer = self.ggml.ggml_new_tensor(self.context, type_, len(ne), shape)
        self.ggml.ggml_set_name(tensor, name.encode())
        return tensor

    def place(self, tensor: TensorPointer, buffer: int, address: int) -> None:
        """Give a tensor its place in a buffer."""
        status = self.ggml.ggml_backend_tensor_alloc(buffer, tensor, address)
        assert status == 0, f"ggml_backend_tensor_alloc: {status}"

    def ask_size(self, name: str, tensor: TensorPointer) -> None:
        """GET_ALLOC_SIZE; the client remembers the answer and asks once for each kind of tensor."""
        sources = [source and as_pointer(source) for source in tensor.contents.src]
        request = {
            "device": 0,
            "tensor": tensor_fields(tensor),
            "sources": [source and tensor_fields(source) for source in sources],
        }
        size = self.ggml.ggml_backend_buft_get_alloc_size(self.type, tensor)
        self.meant(f"get_alloc_size_{name}", "GET_ALLOC_SIZE", request, {"size": size})

    def alloc(self, name: str, size: int) -> tuple[int, int]:
        """ALLOC_BUFFER and BUFFER_GET_BASE; the buffer and its base address."""
        buffer = self.ggml.ggml_backend_buft_alloc_buffer(self.type, size)
        reply = {"handle": handle(buffer), "size": Buffer.from_address(buffer).size}
        self.meant(f"alloc_buffer_{name}", "ALLOC_BUFFER", {"device": 0, "size": size}, reply)
        base = self.ggml.ggml_backend_buffer_get_base(buffer)
        request = {"handle": handle(buffer)}
        self.meant(f"buffer_get_base_{name}", "BUFFER_GET_BASE", request, {"base": base})
        return buffer, base

    def no_room(self) -> None:
        """ALLOC_BUFFER for more than there is."""
        size = 1 << 60
        buffer = self.ggml.ggml_backend_buft_alloc_buffer(self.type, size)
        assert not buffer, "a server had an exbibyte"
        reply = {"handle": 0, "size": 0}
        self.meant("alloc_buffer_no_room", "ALLOC_BUFFER", {"device": 0, "size": size}, reply)

    def set(self, name: str, tensor: TensorPointer, data: bytes, offset: int = 0) -> None:
        """SET_TENSOR."""
        self.ggml.ggml_backend_tensor_set(tensor, data, offset, len(data))
        fields = {"tensor": tensor_fields(tensor), "offset": offset}
        sent = {**fields, "cache": 0, "data": data.hex()}
        self.meant(f"set_tensor_{name}", "SET_TENSOR", sent)

    def set_big(self, tensor: TensorPointer) -> None:
        """SET_TENSOR_HASH, which misses; SET_TENSOR with the cache flag; the hash, which hits."""
        data = (bytes(range(251)) * (BIG_SIZE // 251 + 1))[:BIG_SIZE]
        fields = {"tensor": tensor_fields(tensor), "offset": 0}
        asked = {**fields, "hash": fnv_1a(data)}
        self.ggml.ggml_backend_tensor_set(tensor, data, 0, len(data))
        self.meant("set_tensor_hash_miss", "SET_TENSOR_HASH", asked, {"result": 0})
        sent = {**fields, "cache": 1, "data": {"size": len(data), "byte_i": "i % 251"}}
        self.meant("set_tensor_to_cache", "SET_TENSOR", sent)
        self.ggml.ggml_backend_tensor_set(tensor, data, 0, len(data))
        self.meant("set_tensor_hash_hit", "SET_TENSOR_HASH", asked, {"result": 1})

    def memset(self, tensor: TensorPointer, *, value: int, offset: int, size: int) -> None:
        """MEMSET_TENSOR."""
        self.ggml.ggml_backend_tensor_memset(tensor, value, offset, size)
        request = {"tensor": tensor_fields(tensor), "offset": offset, "size": size, "value": value}
        self.meant("memset_tensor", "MEMSET_TENSOR", request)

    def get(self, name: str, tensor: TensorPointer, *, offset: int, size: int) -> None:
        """GET_TENSOR."""
        data = ctypes.create_string_buffer(size)
        self.ggml.ggml_backend_tensor_get(tensor, data, offset, size)
        request = {"tensor": tensor_fields(tensor), "offset": offset, "size": size}
        self.meant(f"get_tensor_{name}", "GET_TENSOR", request, {"data": data.raw.hex()})

    def copy(self, src: TensorPointer, dst: TensorPointer) -> None:
        """COPY_TENSOR inside one server."""
        self.ggml.ggml_backend_tensor_copy(src, dst)
        request = {"src": tensor_fields(src), "dst": tensor_fields(dst)}
        self.meant("copy_tensor", "COPY_TENSOR", request, {"result": 1})

    def attention(self) -> TensorPointer:
        """An operation that may want room beyond its result; with four sources."""
        query = self.tensor("q", TYPE_F32, 64, 1, 4)
        key, value = self.tensor("k", TYPE_F16, 64, 32, 4), self.tensor("v", TYPE_F16, 64, 32, 4)
        mask = self.tensor("mask", TYPE_F16, 32, 1)
        result: TensorPointer = self.ggml.ggml_flash_attn_ext(
            self.context, query, key, value, mask, 0.125, 0.0, 0.0
        )
        return result

    def graph(self, x: TensorPointer, address: int) -> None:
        """GRAPH_COMPUTE, GRAPH_RECOMPUTE and the result."""
        total = self.nodes(x, address)
        graph = self.ggml.ggml_new_graph(self.context)
        self.ggml.ggml_build_forward_expand(graph, total)
        graph.contents.uid = 1  # what ggml's scheduler numbers: a known graph is only re-computed
        for name, request in (("COMPUTE", graph_fields(graph)), ("RECOMPUTE", {"device": 0})):
            status = self.ggml.ggml_backend_graph_compute(self.backend, graph)
            assert status == 0, f"ggml_backend_graph_compute: {status}"
            self.meant(f"graph_{name.lower()}", f"GRAPH_{name}", request)
        self.get("sum", total, offset=0, size=64)

    def nodes(self, x: TensorPointer, address: int) -> TensorPointer:
        """A product, a view of it, that scaled, and the sum of both, which is returned."""
        ggml, context = self.ggml, self.context
        product = ggml.ggml_mul_mat(context, self.weight, x)
        view = ggml.ggml_view_1d(context, product, 16, 64)
        scaled = ggml.ggml_scale(context, view, 0.5)
        total: TensorPointer = ggml.ggml_add(context, view, scaled)
        named = {"product": product, "view": view, "scaled": scaled, "sum": total}
        for name, node in named.items():
            ggml.ggml_set_name(node, name.encode())
        self.ask_size("product", product)
        for index, node in enumerate((product, scaled, total)):
            self.place(node, self.compute_buffer, address + 256 * index)
        status = ggml.ggml_backend_view_init(view)
        assert status == 0, f"ggml_backend_view_init: {status}"
        return total


if __name__ == "__main__":
    sys.exit(main())
