"""Graphs between numpy and C: gather the tensors that a ggml_cgraph reaches; build a ggml_cgraph.

Both directions work on whole arrays: a graph has hundreds of tensors, and Python per tensor costs
more than the arithmetic of a small model's step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.layout import CGRAPH, TENSOR, TENSOR_SIZE
from ringline.ggml.memory import record_at, view, window

__all__ = ["BuiltGraph", "Gathered", "gather"]

#: ggml hashes a pointer as (address >> 4) % size and probes the next slots.
_HASH_SHIFT: Final = np.uint64(4)
_ALIGN: Final = 64

U64 = npt.NDArray[np.uint64]
I32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Gathered:
    """What a graph consists of, copied out of C.

    Attributes:
        uid: the graph's number; the same number means the same graph, 0 means "unknown".
        nodes: addresses of the tensors to compute, in order.         # [n_nodes] u64
        addresses: addresses of all tensors reached, sorted.           # [n_tensors] u64
        tensors: their structs, in the same order.                     # [n_tensors] TENSOR
        use_counts: how many nodes of the whole graph use each.        # [n_tensors] i32
    """

    uid: int
    nodes: U64
    addresses: U64
    tensors: npt.NDArray[np.void]
    use_counts: I32


def graph_uid(address: int) -> int:
    """The uid of the ggml_cgraph at `address`; 0 where it has none."""
    return int.from_bytes(view(address + CGRAPH.fields["uid"][1], 8), "little")  # type: ignore[index]


def gather(address: int) -> Gathered:
    """Copy out every tensor that the nodes of the ggml_cgraph at `address` reach."""
    graph = record_at(address, CGRAPH)[0]
    n_nodes = int(graph["n_nodes"])
    nodes = np.frombuffer(view(int(graph["nodes"]), 8 * n_nodes), np.uint64).copy()
    known = np.sort(nodes)
    structs = _read(known)
    fresh_structs = structs
    while True:
        sources = fresh_structs["src"].ravel()
        reached = np.concatenate((sources, fresh_structs["view_src"]))
        fresh = _not_in(_distinct(reached[reached != 0]), known)
        if not len(fresh):
            break
        fresh_structs = _read(fresh)
        known = np.concatenate((known, fresh))
        structs = np.concatenate((structs, fresh_structs))
        order = np.argsort(known, kind="stable")
        known, structs = known[order], structs[order]
    return Gathered(int(graph["uid"]), nodes, known, structs, _use_counts(graph, known))


def _read(addresses: U64) -> npt.NDArray[np.void]:
    """The structs at sorted `addresses`."""
    low, high = int(addresses[0]), int(addresses[-1])
    structs: npt.NDArray[np.void] = window(low, high, TENSOR)[
        (addresses - np.uint64(low)) >> _HASH_SHIFT
    ]
    return structs


def _distinct(values: U64) -> U64:
    values = np.sort(values)
    keep = np.ones(len(values), np.bool_)
    keep[1:] = values[1:] != values[:-1]
    return values[keep]


def _not_in(values: U64, known: U64) -> U64:
    if not len(values):
        return values
    places = np.minimum(np.searchsorted(known, values), len(known) - 1)
    absent: npt.NDArray[np.bool_] = known[places] != values
    return values[absent]


def _use_counts(graph: np.void, addresses: U64) -> I32:
    """Look the tensors up in the graph's hash set, all at once; absent ones count 0."""
    counts = np.zeros(len(addresses), np.int32)
    size = int(graph["hash_size"])
    if size == 0 or int(graph["use_counts"]) == 0:
        return counts
    keys = np.frombuffer(view(int(graph["hash_keys"]), 8 * size), np.uint64)
    used_words = np.frombuffer(view(int(graph["hash_used"]), 4 * ((size + 31) // 32)), np.uint32)
    uses = np.frombuffer(view(int(graph["use_counts"]), 4 * size), np.int32)
    open_ = np.arange(len(addresses))
    slots = ((addresses >> _HASH_SHIFT) % np.uint64(size)).astype(np.int64)
    for _ in range(size):
        used = (used_words[slots >> 5] >> (slots & 31).astype(np.uint32)) & 1
        hit = (used == 1) & (keys[slots] == addresses[open_])
        counts[open_[hit]] = uses[slots[hit]]
        again = (used == 1) & ~hit
        if not again.any():
            break
        open_, slots = open_[again], (slots[again] + 1) % size
    return counts


class BuiltGraph:
    """A ggml_cgraph in memory of our own, made from arrays.

    The C struct at `address` stays valid as long as this object lives. `tensors` is laid out as
    ggml_tensor[]; pointers between them (`src`, `view_src`) are filled in here from indices.
    """

    def __init__(
        self,
        tensors: npt.NDArray[np.void],
        sources: npt.NDArray[np.int64],
        views: npt.NDArray[np.int64],
        nodes: npt.NDArray[np.int64],
        use_counts: I32,
    ) -> None:
        """Lay the graph out.

        Args:
            tensors: structs without pointers.               # [n] TENSOR
            sources: index of each source, -1 for none.      # [n, 10] i64
            views: index of what each is a view of, or -1.   # [n] i64
            nodes: indices of the nodes, in order.           # [n_nodes] i64
            use_counts: per node.                            # [n_nodes] i32
        """
        n_tensors = len(tensors)
        self._block = _aligned(n_tensors, TENSOR)
        self._block[:] = tensors
        base = np.uint64(self._block.ctypes.data)
        self._block["src"] = _pointers(base, sources)
        self._block["view_src"] = _pointers(base, views)
        self._nodes = _pointers(base, nodes)
        # A power of two >= n_tensors has no collision: 336 = 21 * 16, and 21 is odd.
        size = 1 << max(0, (n_tensors - 1).bit_length())
        slots = ((self._nodes >> _HASH_SHIFT) % np.uint64(size)).astype(np.int64)
        self._keys = np.zeros(size, np.uint64)
        self._keys[slots] = self._nodes
        self._uses = np.zeros(size, np.int32)
        self._uses[slots] = use_counts
        self._used = np.zeros((size + 31) // 32, np.uint32)
        np.bitwise_or.at(self._used, slots >> 5, np.uint32(1) << (slots & 31).astype(np.uint32))
        self._graph = self._head(len(nodes), size)
        self.address: int = self._graph.ctypes.data

    def _head(self, n_nodes: int, hash_size: int) -> npt.NDArray[np.void]:
        graph = np.zeros(1, CGRAPH)
        graph["size"] = graph["n_nodes"] = n_nodes
        graph["nodes"] = self._nodes.ctypes.data
        graph["use_counts"] = self._uses.ctypes.data
        graph["hash_size"] = hash_size
        graph["hash_used"] = self._used.ctypes.data
        graph["hash_keys"] = self._keys.ctypes.data
        return graph

    def tensor_address(self, index: int) -> int:
        """Address of the C struct of one tensor."""
        return int(self._block.ctypes.data) + index * TENSOR_SIZE


def _pointers(base: np.uint64, indices: npt.NDArray[np.int64]) -> U64:
    addresses = base + indices.astype(np.uint64) * np.uint64(TENSOR_SIZE)
    return np.where(indices >= 0, addresses, np.uint64(0))


def _aligned(count: int, dtype: np.dtype[np.void]) -> npt.NDArray[np.void]:
    """An array of structs whose address is a multiple of 64."""
    raw = np.empty(count * dtype.itemsize + _ALIGN, np.uint8)
    start = -raw.ctypes.data % _ALIGN
    return raw[start : start + count * dtype.itemsize].view(dtype)
