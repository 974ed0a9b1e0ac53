"""From the body of GRAPH_COMPUTE to a ggml_cgraph: every rule checked, all tensors at once.

A graph has hundreds of tensors and a decode step of a small model takes a few milliseconds, so no
rule may cost Python per tensor: each is one expression over columns. The columns that do not depend
on the session (ids, shapes, order) are in structure.py; here are memory and the C structs.
Refusals name the tensor and the rule. Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.graph import BuiltGraph
from ringline.ggml.layout import TENSOR
from ringline.ggml.types import tables
from ringline.server.buffers import BufferTable, Registry
from ringline.server.structure import Mask, Structure, read_structure, refuse
from ringline.wire.graph import GraphBody

__all__ = ["LaidOut", "StoredGraph", "build_graph"]

#: as many as the codec of level 5 can repeat.
_MOST_LAID_OUT: Final = 32
U64 = npt.NDArray[np.uint64]


@dataclass(slots=True)
class StoredGraph:
    """A graph ready to be computed, again and again.

    Attributes:
        graph: the C structs.
        handles: the buffers that hold its tensors.
        generation: of the registry when they were last seen there.
    """

    graph: BuiltGraph
    handles: frozenset[int]
    generation: int

    def usable(self, registry: Registry) -> bool:
        """Whether all its buffers are still there; those of other contexts do not matter."""
        generation = registry.generation
        if generation != self.generation:
            if not all(registry.find(handle) for handle in self.handles):
                return False
            self.generation = generation
        return True


class LaidOut:
    """The last graphs of a connection by the object whose bytes they were made of."""

    def __init__(self) -> None:
        self._graphs: dict[int, tuple[object, StoredGraph]] = {}

    def find(self, source: object, registry: Registry) -> StoredGraph | None:
        """The graph that was made of this very object, if it can still be computed."""
        _, graph = self._graphs.get(id(source), (None, None))
        return graph if graph is not None and graph.usable(registry) else None

    def add(self, source: object, graph: StoredGraph) -> None:
        """Remember a graph. Its source is kept alive, or another object could get its id.

        The codec gives bytes, of which it keeps a bounded number itself; a large frame of its own
        is read into a bytearray, never comes again as the same object, and is not kept.
        """
        if not isinstance(source, bytes):
            return
        self._graphs.pop(id(source), None)
        while len(self._graphs) >= _MOST_LAID_OUT:
            del self._graphs[next(iter(self._graphs))]
        self._graphs[id(source)] = source, graph

    def clear(self) -> None:
        """Forget all."""
        self._graphs.clear()


@dataclass(frozen=True, slots=True)
class _Memory:
    """Where the tensors are in this process; 0 for those that are nowhere."""

    buffers: U64  # addresses of ggml buffers, [n_tensors]
    data: U64  # addresses of bytes, [n_tensors]


def build_graph(body: GraphBody, registry: Registry) -> StoredGraph:
    """Check a graph and lay it out for ggml.

    Args:
        body: the request.
        registry: the buffers of the session.

    Raises:
        RefusedError: names the tensor and the rule that it breaks.
    """
    generation = registry.generation
    structure = read_structure(body)
    memory = _place(structure, registry.table())
    _check_data(structure, memory)
    _check_views(structure)
    graph = BuiltGraph(
        _structs(structure, memory),
        structure.sources,
        structure.views,
        structure.nodes,
        structure.tensors["use_count"][structure.nodes],
    )
    handles = np.unique(structure.tensors["buffer"][memory.buffers != 0])
    return StoredGraph(graph, frozenset(handles.tolist()), generation)


def _place(structure: Structure, table: BufferTable) -> _Memory:
    """Resolve handles and virtual addresses; a tensor without a buffer must have no address."""
    tensors = structure.tensors
    handles, data = tensors["buffer"], tensors["data"].astype(np.uint64)
    if not len(table.handles):
        refuse(tensors, data != 0, "invalid data ptr: an address without a buffer")
        return _Memory(np.zeros_like(data), data)
    places = np.minimum(np.searchsorted(table.handles, handles), len(table.handles) - 1)
    known = table.handles[places] == handles
    refuse(tensors, ~known & (data != 0), "invalid data ptr: an address without a buffer")
    bases, room = table.bases[places], table.sizes[places]
    offsets = data - bases  # wraps where data < bases, which is refused
    sizes = structure.sizes.astype(np.uint64)
    outside = (data < bases) | (offsets > room) | (sizes > room - offsets)
    refuse(tensors, known & outside, "its data is outside its buffer")
    nowhere = np.uint64(0)
    return _Memory(
        buffers=np.where(known, table.addresses[places], nowhere),
        data=np.where(known, table.memory[places] + offsets, nowhere),
    )


def _check_data(structure: Structure, memory: _Memory) -> None:
    """What is computed, and what it is computed from, is somewhere."""
    tensors, nodes = structure.tensors, structure.nodes
    computed = _computed(structure)
    refuse(
        tensors, computed & (memory.data[nodes] == 0), "it is computed but has no data", among=nodes
    )
    sources = structure.sources[nodes]
    missing = (memory.data == 0) & (structure.sizes > 0)
    bad = (sources >= 0) & missing[sources] & computed[:, None]
    refuse(tensors, bad, "one of its sources has no data", among=nodes)
    owners = computed & (structure.views[nodes] < 0)
    bad = _unlike_new(structure) & owners[:, None]
    refuse(tensors, bad, "it is computed but not contiguous", among=nodes)


def _computed(structure: Structure) -> Mask:
    """Which nodes write memory: a mask over the nodes."""
    views: Mask = tables().views
    written: Mask = ~views[structure.ops[structure.nodes]] & (structure.sizes[structure.nodes] > 0)
    return written


def _unlike_new(structure: Structure) -> Mask:
    """Which strides of the nodes are not those of a new tensor: ops write results as if they were.

    A stride counts where its dimension has more than one element; strides are cut to 32 bits on
    the wire. The mask is over nodes and dimensions.
    """
    nodes, known = structure.nodes, tables()
    kinds, ne, nb = structure.kinds[nodes], structure.ne[nodes], structure.nb[nodes]
    expected = np.empty_like(nb)
    expected[:, 0] = known.size[kinds]
    expected[:, 1] = expected[:, 0] * (ne[:, 0] // known.block[kinds])
    expected[:, 2] = expected[:, 1] * ne[:, 1]
    expected[:, 3] = expected[:, 2] * ne[:, 2]
    counts = ne > 1
    counts[:, 0] = True
    unlike: Mask = (nb != expected & 0xFFFFFFFF) & counts
    return unlike


def _check_views(structure: Structure) -> None:
    """A view's data is its source's data plus its offset, in the same buffer."""
    tensors = structure.tensors
    seen, data, buffers = structure.views, tensors["data"].copy(), tensors["buffer"].copy()
    placed = (seen >= 0) & (data != 0) & (data[seen] != 0)
    same = (data == data[seen] + tensors["view_offs"]) & (buffers == buffers[seen])
    refuse(tensors, placed & ~same, "it is not where the tensor that it views says")


def _structs(structure: Structure, memory: _Memory) -> npt.NDArray[np.void]:
    """The records as ggml_tensor[], without the pointers between them."""
    tensors = structure.tensors
    structs = np.zeros(len(tensors), TENSOR)
    structs["type"] = structure.kinds
    structs["buffer"] = memory.buffers
    structs["ne"] = structure.ne
    structs["nb"] = structure.nb
    structs["op"] = structure.ops
    structs["op_params"] = tensors["op_params"]
    structs["flags"] = tensors["flags"]
    structs["view_offs"] = tensors["view_offs"]
    structs["data"] = memory.data
    structs["name"] = tensors["name"].astype("S63")  # C wants an end; all 64 bytes may be text
    return structs
