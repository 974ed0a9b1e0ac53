"""From ggml_tensor structs in C to the records of the wire."""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.client.node import Node
from ringline.ggml.graph import Gathered
from ringline.ggml.layout import MAX_SRC, TENSOR_SIZE
from ringline.ggml.memory import copy_out
from ringline.wire.graph import GraphBody
from ringline.wire.tensor import NO_TENSOR, RECORD, Tensor

__all__ = ["TensorPacker", "buffer_address", "graph_body", "sources"]

#: struct ggml_tensor: type, buffer, ne, nb, op, op_params, flags, src, view_src, view_offs, data,
#: name
_STRUCT: Final = struct.Struct("<i4xQ4q4Qi64si10QQQQ64s")
_MOST_REMEMBERED: Final = 4096
_U32: Final = 0xFFFFFFFF


class TensorPacker:
    """Packs single tensors for one node and remembers them: a step sends the same few again."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._known: dict[bytes, bytes] = {}
        self._generation = node.generation

    def pack(self, address: int) -> bytes:
        """The record of the ggml_tensor at `address`, 296 bytes; NO_TENSOR for address 0."""
        if not address:
            return NO_TENSOR
        raw = copy_out(address, TENSOR_SIZE)
        if self._generation != self._node.generation or len(self._known) > _MOST_REMEMBERED:
            self._known.clear()
            self._generation = self._node.generation
        # The id is the tensor's address; it is not in the struct, so equal structs share a record.
        # Only graphs need ids to be distinct.
        packed = self._known.get(raw)
        if packed is None:
            packed = self._known[raw] = self._record(raw, address).pack()
        return packed

    def _record(self, raw: bytes, address: int) -> Tensor:
        f = _STRUCT.unpack_from(raw)
        handle = self._node.handle_of(f[1])
        return Tensor(
            id=address,
            type=f[0],
            buffer=handle,
            ne=tuple(n & _U32 for n in f[2:6]),
            nb=tuple(n & _U32 for n in f[6:10]),
            op=f[10],
            op_params=f[11],
            flags=f[12],
            src=f[13:23],
            view_src=f[23],
            view_offs=f[24],
            data=f[25] if handle else 0,
            name=f[26].split(b"\0", 1)[0].decode("utf-8", "replace"),
        )


def sources(address: int) -> tuple[int, ...]:
    """Addresses of the ten sources of the ggml_tensor at `address`, 0 where there is none."""
    return struct.unpack(f"<{MAX_SRC}Q", copy_out(address + 152, 8 * MAX_SRC))


def buffer_address(address: int) -> int:
    """The ggml_backend_buffer_t that holds the tensor at `address`, through its view source."""
    (view_src,) = struct.unpack("<Q", copy_out(address + 232, 8))
    (buffer,) = struct.unpack("<Q", copy_out((view_src or address) + 8, 8))
    return int(buffer)


def graph_body(device: int, graph: Gathered, node: Node) -> GraphBody:
    """The wire's form of a gathered graph for one node.

    Tensors that lie elsewhere keep their shape but get buffer 0 and data 0: a pointer of another
    node means nothing here (llama.cpp issue 26500).
    """
    structs = graph.tensors
    records: npt.NDArray[np.void] = np.zeros(len(structs), RECORD)
    handles = node.handles_of(structs["buffer"])
    records["id"] = graph.addresses
    records["buffer"] = handles
    records["data"] = np.where(handles != 0, structs["data"], 0)
    for field in ("type", "ne", "nb", "op", "op_params", "flags", "src", "view_src", "view_offs"):
        records[field] = structs[field]
    records["name"] = structs["name"]
    records["use_count"] = graph.use_counts
    return GraphBody(device, graph.nodes, records)
