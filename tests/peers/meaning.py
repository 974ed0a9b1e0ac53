"""What the stock client's frames mean, read from ggml's own structs in its memory.

The other half of the golden bytes: values that no encoder of the protocol had a part in.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

from tests.peers.stock_library import Buffer, Graph, RpcBufferContext, Tensor

if TYPE_CHECKING:
    from ctypes import _Pointer

    TensorPointer = _Pointer[Tensor]
    GraphPointer = _Pointer[Graph]

Fields = dict[str, Any]


def handle(buffer: int) -> int:
    """The server's name for a buffer, as the stock client keeps it in memory."""
    context = Buffer.from_address(buffer).context
    return int(RpcBufferContext.from_address(context).handle)


def as_pointer(address: int) -> TensorPointer:
    """A pointer to the tensor at an address."""
    return ctypes.pointer(Tensor.from_address(address))


def tensor_fields(tensor: TensorPointer, use_count: int = 0) -> Fields:
    """What a tensor record says about a tensor, read from ggml's struct."""
    record = tensor.contents
    return {
        "id": ctypes.addressof(record),
        "type": record.type,
        "buffer": handle(record.buffer) if record.buffer else 0,
        "ne": list(record.ne),
        "nb": list(record.nb),
        "op": record.op,
        "op_params": bytes(record.op_params).hex(),
        "flags": record.flags,
        "src": [source or 0 for source in record.src],
        "view_src": record.view_src or 0,
        "view_offs": record.view_offs,
        "data": record.data or 0,
        "name": record.name.decode(),
        "use_count": use_count,
    }


def graph_fields(graph: GraphPointer) -> Fields:
    """What GRAPH_COMPUTE says about a graph: its nodes, and all tensors that they reach, by id.

    The order of the tensors in the frame is the client's own; here they are in the order of ids.
    """
    record = graph.contents
    nodes = [int(record.nodes[index] or 0) for index in range(record.n_nodes)]
    uses = {
        record.keys[slot]: record.use_counts[slot]
        for slot in range(record.n_slots)
        if record.used[slot // 32] >> slot % 32 & 1
    }
    found: dict[int, Fields] = {}
    waiting = list(nodes)
    while waiting:
        address = waiting.pop()
        if address and address not in found:
            found[address] = tensor_fields(as_pointer(address), uses.get(address, 0))
            waiting += [*found[address]["src"], found[address]["view_src"]]
    tensors = [found[address] for address in sorted(found)]
    return {"device": 0, "nodes": nodes, "tensors": tensors}


def fnv_1a(data: bytes) -> int:
    """The 64-bit FNV-1a hash, written out: it takes seconds, when golden bytes are made."""
    result = 0xCBF29CE484222325
    for byte in data:
        result = ((result ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return result
