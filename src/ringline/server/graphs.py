"""From the body of GRAPH_COMPUTE to a ggml_cgraph: every rule checked, all tensors at once.

A graph has hundreds of tensors and a decode step of a small model takes a few milliseconds, so no
rule may cost Python per tensor: each is one expression over columns. What does not depend on the
session is elsewhere: ids (links.py), shapes and order (structure.py), the rules of each op
(rules/); a structure that was checked once is remembered (checked.py). Here are memory and the C
structs.
Refusals name the tensor and the rule. Sizes are bytes.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.devices import Device
from ringline.ggml.graph import BuiltGraph
from ringline.ggml.layout import TENSOR
from ringline.ggml.types import tables
from ringline.server.buffers import BufferTable, Registry
from ringline.server.checked import CheckedStructures, structural_key
from ringline.server.columns import I64, refuse
from ringline.server.links import read_links
from ringline.server.rules import check_nodes
from ringline.server.structure import Structure, read_structure
from ringline.wire.graph import GraphBody

__all__ = ["LaidOut", "StoredGraph", "build_graph"]

#: as many as the codec of level 5 can repeat.
_MOST_LAID_OUT: Final = 32
U64 = npt.NDArray[np.uint64]


@dataclass(slots=True, weakref_slot=True)
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
    devices: I64  # indices of devices, -1 for none, [n_tensors]
    room: U64  # bytes from the data to the end of the buffer, [n_tensors]


def build_graph(
    body: GraphBody,
    registry: Registry,
    *,
    device: Device | None = None,
    checked: CheckedStructures | None = None,
) -> StoredGraph:
    """Check a graph and lay it out for ggml.

    Args:
        body: the request.
        registry: the buffers of the session.
        device: what will compute it; None stands for a CPU.
        checked: the structures that were checked before, and this one afterwards.

    Raises:
        RefusedError: names the tensor and the rule that it breaks.
    """
    generation = registry.generation
    on_cpu = device is None or device.kind == "CPU"
    links = read_links(body)
    key, known = b"", None
    if checked is not None:
        key = structural_key(body.tensors, links, device=device.name if device else "CPU")
        known = checked.find(key, body.tensors)
    structure = known or read_structure(body.tensors, links)
    if known is None:
        check_nodes(structure, on_cpu=on_cpu)
    memory = _place(structure, registry.table())
    _check_data(structure, memory, body.device)
    _check_factors(structure, memory)
    _check_views(structure)
    graph = BuiltGraph(
        _structs(structure, memory),
        structure.sources,
        structure.views,
        structure.nodes,
        structure.tensors["use_count"][structure.nodes],
    )
    if known is None:
        if device is not None and not on_cpu:
            _ask(device, graph, structure)
        if checked is not None:
            checked.add(key, structure)
    handles = np.unique(structure.tensors["buffer"][memory.buffers != 0])
    return StoredGraph(graph, frozenset(handles.tolist()), generation)


def _ask(device: Device, graph: BuiltGraph, structure: Structure) -> None:
    """Let a device that is no CPU say whether it can compute what it is asked to."""
    computed = structure.nodes[structure.computed()]
    unable = [not device.supports_op(graph.tensor_address(int(index))) for index in computed]
    text = f"device {device.name} does not support this op with these types and shapes"
    refuse(structure.tensors, np.array(unable, np.bool_), text, rule="op-device", among=computed)


def _place(structure: Structure, table: BufferTable) -> _Memory:
    """Resolve handles and virtual addresses; a tensor without a buffer must have no address."""
    tensors = structure.tensors
    handles, data = tensors["buffer"], tensors["data"].astype(np.uint64)
    text = "invalid data ptr: an address without a buffer"
    if not len(table.handles):
        refuse(tensors, data != 0, text, rule="buffer")
        return _Memory(np.zeros_like(data), data, np.full(len(data), -1), np.zeros_like(data))
    places = np.minimum(np.searchsorted(table.handles, handles), len(table.handles) - 1)
    known = table.handles[places] == handles
    refuse(tensors, ~known & (data != 0), text, rule="buffer")
    bases, room = table.bases[places], table.sizes[places]
    offsets = data - bases  # wraps where data < bases, which is refused
    sizes = structure.sizes.astype(np.uint64)
    outside = (data < bases) | (offsets > room) | (sizes > room - offsets)
    refuse(tensors, known & outside, "its data is outside its buffer", rule="bounds")
    grain = np.where(tables().block == 1, tables().size, 1)[structure.kinds]
    askew = data & (grain - 1).astype(np.uint64) != 0
    refuse(tensors, askew, "its data is not aligned to its elements", rule="alignment")
    nowhere = np.uint64(0)
    return _Memory(
        buffers=np.where(known, table.addresses[places], nowhere),
        data=np.where(known, table.memory[places] + offsets, nowhere),
        devices=np.where(known, table.devices[places], -1),
        room=np.where(known, room - offsets, nowhere),
    )


def _check_data(structure: Structure, memory: _Memory, device: int) -> None:
    """What is computed, and what it is computed from, is somewhere, and on the right device."""
    tensors = structure.tensors
    nodes = structure.nodes[structure.computed()]
    text = "it is computed but has no data"
    refuse(tensors, memory.data[nodes] == 0, text, rule="data", among=nodes)
    sources = structure.sources[nodes]
    missing = (memory.data == 0) & (structure.sizes > 0)
    missing = np.append(missing, False)  # an index of -1 is no source
    refuse(tensors, missing[sources], "one of its sources has no data", rule="data", among=nodes)
    apart = np.append((memory.devices != device) & (memory.data != 0), False)
    bad = apart[nodes] | apart[sources].any(axis=1)
    text = f"it is computed on device {device}, but not all of it is there"
    refuse(tensors, bad, text, rule="buffer", among=nodes)


def _check_factors(structure: Structure, memory: _Memory) -> None:
    """ROPE on a CPU reads a factor for each pair of a row, also for those that it does not turn.

    Models where it turns a part of the row have factors for that part only, and what is read beyond
    is not used: so it only has to be memory of the buffer.
    """
    ropes = _ropes()[structure.ops[structure.nodes]] & structure.computed()
    nodes = structure.nodes[ropes]
    nodes = nodes[structure.sources[nodes, 2] >= 0]
    if len(nodes):
        rows, factors = structure.sources[nodes, 0], structure.sources[nodes, 2]
        needed = 4 * (structure.ne[rows, 0] // 2)
        bad = needed.astype(np.uint64) > memory.room[factors]
        text = "its factors end too early in their buffer"
        refuse(structure.tensors, bad, text, rule="bounds", among=nodes)


@functools.cache
def _ropes() -> npt.NDArray[np.bool_]:
    """Which ops are ROPE and ROPE_BACK, by number."""
    return np.array([name.startswith("ROPE") for name in tables().op_names], np.bool_)


def _check_views(structure: Structure) -> None:
    """A view's data is its source's data plus its offset, in the same buffer."""
    tensors = structure.tensors
    seen, data, buffers = structure.views, tensors["data"].copy(), tensors["buffer"].copy()
    placed = (seen >= 0) & (data != 0) & (data[seen] != 0)
    same = (data == data[seen] + tensors["view_offs"]) & (buffers == buffers[seen])
    text = "it is not where the tensor that it views says"
    refuse(tensors, placed & ~same, text, rule="bounds")


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
