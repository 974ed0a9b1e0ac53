"""One small graph whose result is known: softmax(A * B + C), of 64 x 64 numbers.

The reference is this machine's own CPU, by the same ggml. A device may multiply in a shorter format
than f32, so results are close and not equal; a broken driver, a kernel for other hardware or a node
of another byte order is far off. Sizes are bytes.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.client.node import Node
from ringline.errors import LibraryError, RefusedError
from ringline.ggml.devices import cpu_device
from ringline.ggml.graph import BuiltGraph
from ringline.ggml.layout import TENSOR, Status
from ringline.ggml.types import tables
from ringline.wire.commands import Command
from ringline.wire.extension import SupportsOp
from ringline.wire.graph import GraphBody
from ringline.wire.messages import GetTensor, Result, SetTensor
from ringline.wire.tensor import RECORD, Tensor

__all__ = ["TOLERANCE", "compute_here", "compute_there", "unsupported"]

F32s = npt.NDArray[np.float32]

#: the largest difference of two right results; they lie between 0 and 1.
TOLERANCE: Final = 0.005
_SIDE: Final = 64
_WHOLE: Final = 4 * _SIDE * _SIDE
_F32: Final = 0
#: GGML_TENSOR_FLAG_COMPUTE
_COMPUTE: Final = 16
#: places, in matrices: A, B, C, then product, sum and softmax. Ids are counted from 1.
_OPS: Final = ("NONE", "NONE", "NONE", "MUL_MAT", "ADD", "SOFT_MAX")
_SOURCES: Final = ((), (), (), (1, 2), (4, 3), (5,))
_COMPUTED: Final = (4, 5, 6)
#: scale 1, no bias: the parameters of SOFT_MAX.
_SOFT_MAX: Final = struct.pack("<ff", 1.0, 0.0).ljust(64, b"\0")


def _inputs() -> F32s:
    """A, B and C: always the same numbers between -1 and 1."""
    # [3, 64, 64] f32
    return np.random.default_rng(64).uniform(-1, 1, (3, _SIDE, _SIDE)).astype(np.float32)


def _tensors(handle: int, base: int) -> list[Tensor]:
    """The six tensors as records, one after another in a buffer."""
    return [
        Tensor(
            id=index + 1,
            type=_F32,
            buffer=handle,
            ne=(_SIDE, _SIDE, 1, 1),
            nb=(4, 4 * _SIDE, _WHOLE, _WHOLE),
            op=tables().op_names.index(name),
            op_params=_SOFT_MAX if name == "SOFT_MAX" else bytes(64),
            flags=_COMPUTE if index + 1 in _COMPUTED else 0,
            src=tuple(_SOURCES[index]) + (0,) * (10 - len(_SOURCES[index])),
            data=base + index * _WHOLE,
            name=f"known-{index + 1}",
            use_count=int(index < 5),
        )
        for index, name in enumerate(_OPS)
    ]


def compute_here() -> F32s:
    """The result of this machine's CPU, [64, 64] f32.

    Raises:
        LibraryError: the local ggml cannot compute it.
    """
    device = cpu_device()
    buffer = device.alloc_buffer(len(_OPS) * _WHOLE)
    if buffer is None:
        raise LibraryError("this machine has no memory for a graph of 100 KB")
    backend = device.open(1)
    try:
        memory = np.frombuffer(buffer.view(buffer.base, len(_OPS) * _WHOLE), np.float32)
        memory = memory.reshape(len(_OPS), _SIDE, _SIDE)
        memory[:3] = _inputs()
        graph = _local_graph(buffer.address, buffer.base)
        status = backend.compute(graph.address)
        if status is not Status.SUCCESS:
            raise LibraryError(f"this machine's CPU cannot compute a small graph ({status.name})")
        return np.array(memory[5], np.float32)
    finally:
        backend.close()
        buffer.close()


def _local_graph(buffer: int, base: int) -> BuiltGraph:
    records = np.frombuffer(b"".join(t.pack() for t in _tensors(buffer, base)), RECORD)
    structs = np.zeros(len(_OPS), TENSOR)
    for name in ("type", "buffer", "ne", "nb", "op", "op_params", "flags", "data", "name"):
        structs[name] = records[name]
    sources = records["src"].astype(np.int64) - 1
    nowhere = np.full(len(_OPS), -1, np.int64)
    nodes = np.array(_COMPUTED, np.int64) - 1
    return BuiltGraph(structs, sources, nowhere, nodes, np.ones(len(nodes), np.int32))


def compute_there(node: Node, device: int) -> F32s:
    """The result of a node's device, [64, 64] f32.

    Raises:
        RefusedError: no memory, or it will not compute it. NetworkError, PeerError: it is gone.
    """
    made = node.alloc_buffer(device, len(_OPS) * _WHOLE)
    if not made.handle:
        raise RefusedError("it has no memory for 100 KB", peer=str(node.endpoint))
    tensors = _tensors(made.handle, node.buffer_base(made.handle))
    for tensor, data in zip(tensors, _inputs(), strict=False):
        node.main.post(Command.SET_TENSOR, SetTensor(tensor.pack(), 0, 0).pack(), data.tobytes())
    records = np.frombuffer(b"".join(tensor.pack() for tensor in tensors), RECORD)
    body = GraphBody(device, np.array(_COMPUTED, np.uint64), records)
    node.main.post(Command.GRAPH_COMPUTE, body.pack())
    result = bytearray(_WHOLE)
    request = GetTensor(tensors[-1].pack(), 0, _WHOLE)
    node.main.read(request.COMMAND, request.pack(), target=memoryview(result))
    node.free_buffer(made.handle, 0)
    return np.frombuffer(result, np.float32).reshape(_SIDE, _SIDE)


def unsupported(node: Node, device: int) -> list[str]:
    """Names of ops of the graph that a device says it cannot compute; a stock server is not asked.

    Raises:
        NetworkError, PeerError: the node is gone, or makes no sense.
    """
    if not node.level:
        return []
    tensors, missing = _tensors(0, 0), []
    for number in _COMPUTED:
        tensor = tensors[number - 1]
        sources = b"".join(tensors[s - 1].pack() if s else bytes(296) for s in tensor.src)
        request = SupportsOp(device, tensor.pack(), sources)
        raw = node.main.call(request.COMMAND, request.pack(), size=Result.LAYOUT.size)
        if Result.unpack(raw).value != 1:
            missing.append(_OPS[number - 1])
    return missing
