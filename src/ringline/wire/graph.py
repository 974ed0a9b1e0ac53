"""The body of GRAPH_COMPUTE: which nodes to compute, in order, and all tensors they reach.

The layout:

    device u32 | n_nodes u32 | node ids u64[n_nodes] | n_tensors u32 | RECORD[n_tensors]
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.errors import ProtocolError
from ringline.wire.tensor import RECORD

__all__ = ["GraphBody"]

_HEAD: Final = struct.Struct("<II")
_COUNT: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class GraphBody:
    """One graph for one device.

    Attributes:
        device: index of the device on the node.
        nodes: ids of the tensors to compute, in order.  # [n_nodes] u64
        tensors: every tensor that the nodes reach.      # [n_tensors] RECORD
    """

    device: int
    nodes: npt.NDArray[np.uint64]
    tensors: npt.NDArray[np.void]

    def pack(self) -> bytearray:
        """The body's bytes."""
        n_nodes, n_tensors = len(self.nodes), len(self.tensors)
        body = bytearray(self.size(n_nodes, n_tensors))
        _HEAD.pack_into(body, 0, self.device, n_nodes)
        at = _HEAD.size
        np.frombuffer(body, "<u8", n_nodes, at)[:] = self.nodes
        at += 8 * n_nodes
        _COUNT.pack_into(body, at, n_tensors)
        np.frombuffer(body, RECORD, n_tensors, at + _COUNT.size)[:] = self.tensors
        return body

    @staticmethod
    def size(n_nodes: int, n_tensors: int) -> int:
        """Bytes of a body with so many nodes and tensors."""
        return _HEAD.size + 8 * n_nodes + _COUNT.size + RECORD.itemsize * n_tensors

    @classmethod
    def unpack(cls, raw: bytes | bytearray | memoryview) -> GraphBody:
        """Read a body; the arrays are views into `raw`.

        Raises:
            ProtocolError: the counts and the size of `raw` do not belong together.
        """
        if len(raw) < _HEAD.size + _COUNT.size:
            raise ProtocolError(f"{len(raw)} bytes are too few", command="GRAPH_COMPUTE")
        device, n_nodes = _HEAD.unpack_from(raw)
        at = _HEAD.size + 8 * n_nodes
        if at + _COUNT.size > len(raw):
            raise _misfit(raw, n_nodes)
        (n_tensors,) = _COUNT.unpack_from(raw, at)
        if cls.size(n_nodes, n_tensors) != len(raw):
            raise _misfit(raw, n_nodes)
        nodes = np.frombuffer(raw, "<u8", n_nodes, _HEAD.size)
        tensors = np.frombuffer(raw, RECORD, n_tensors, at + _COUNT.size)
        return cls(device, nodes, tensors)


def _misfit(raw: bytes | bytearray | memoryview, n_nodes: int) -> ProtocolError:
    return ProtocolError(
        f"{len(raw)} bytes do not hold the announced {n_nodes} nodes and their tensors",
        command="GRAPH_COMPUTE",
    )
