"""The structure of a graph as columns: shapes, strides, ops, order. Checked without a session.

Every function works on whole arrays, see graphs.py. Indices are into the graph's tensors, -1 is
"none". Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ringline.ggml.layout import MAX_SRC, OP_COUNT, TYPE_COUNT
from ringline.ggml.types import tables
from ringline.server.columns import I64, Mask, Records, refuse
from ringline.server.links import Links
from ringline.server.ops import least_sources
from ringline.server.regions import MOST_BYTES

__all__ = ["Structure", "read_structure", "tensor_sizes"]

#: on the wire a stride has 32 bits.
_CUT: Final = (1 << 32) - 1
#: so often the elements of a view may lie on each other, as windows do; more takes no memory of the
#: client's, and for ever to compute.
_MOST_OVERLAP: Final = 64.0


@dataclass(frozen=True, slots=True)
class Structure:
    """A graph whose ids, shapes, ops and order are sound.

    Attributes:
        tensors: the records as they came.                         # [n_tensors] RECORD
        nodes: indices of the nodes, in order.                     # [n_nodes] i64
        sources: indices of the sources.                           # [n_tensors, 10] i64
        views: what each is a view of.                             # [n_tensors] i64
        kinds, ops: type and op numbers.                           # [n_tensors] i64
        ne, nb: shape and strides; cut strides are whole again.    # [n_tensors, 4] i64
        sizes: by ggml_nbytes.                                     # [n_tensors] i64
    """

    tensors: Records
    nodes: I64
    sources: I64
    views: I64
    kinds: I64
    ops: I64
    ne: I64
    nb: I64
    sizes: I64

    def computed(self) -> Mask:
        """Which nodes write memory."""
        nodes = self.nodes
        written: Mask = ~tables().views[self.ops[nodes]] & (self.sizes[nodes] > 0)
        return written


def read_structure(tensors: Records, links: Links) -> Structure:
    """Read and check a graph's structure.

    Raises:
        RefusedError: names the tensor and the rule that it breaks.
    """
    kinds, ops = tensors["type"].astype(np.int64), tensors["op"].astype(np.int64)
    ne, nb = tensors["ne"].astype(np.int64), tensors["nb"].astype(np.int64)
    sizes = tensor_sizes(tensors, kinds, ne, nb)
    fresh = _new_strides(kinds, ne)
    like_new = nb == fresh & _CUT
    whole = like_new.all(axis=1) & (fresh[:, 3] >= 0)
    if (whole & (fresh[:, 3] > _CUT)).any():
        nb = np.where(whole[:, None], fresh, nb)
        sizes = tensor_sizes(tensors, kinds, ne, nb)
    structure = Structure(
        tensors=tensors,
        nodes=links.nodes,
        sources=links.sources,
        views=links.views,
        kinds=kinds,
        ops=ops,
        ne=ne,
        nb=nb,
        sizes=sizes,
    )
    _check_ops(structure)
    _check_order(structure)
    _check_chains(structure)
    _check_extents(structure)
    owners = structure.computed() & (links.views[links.nodes] < 0)
    bad = owners & ~whole[links.nodes]
    refuse(tensors, bad, "it is computed but not contiguous", rule="op-stride", among=links.nodes)
    return structure


def tensor_sizes(tensors: Records, kinds: I64, ne: I64, nb: I64) -> I64:
    """Bytes of each tensor: regions.tensor_size() for all of them at once.

    Raises:
        RefusedError: names the tensor and the rule that it breaks.
    """
    known = tables()
    no_type = kinds >= TYPE_COUNT
    kinds = np.where(no_type, 0, kinds)
    blocks = known.block[kinds]
    refuse(tensors, no_type | (blocks == 0), "its type is no tensor type", rule="type")
    refuse(tensors, ne[:, 0] % blocks != 0, "its rows hold no whole blocks", rule="type")
    first, second, third, fourth = ne.astype(np.float64).T  # as floats they do not wrap
    too_many = first * second * third * fourth > MOST_BYTES
    refuse(tensors, too_many, "its shape is too large", rule="size")
    spans = first * nb[:, 0] + second * nb[:, 1] + third * nb[:, 2] + fourth * nb[:, 3]
    refuse(tensors, spans > MOST_BYTES, "its size is too large", rule="size")
    steps = (ne - 1) * nb
    rows = np.where(blocks == 1, known.size[kinds] + steps[:, 0], ne[:, 0] * nb[:, 0] // blocks)
    sizes: I64 = rows + steps[:, 1] + steps[:, 2] + steps[:, 3]
    sizes[ne[:, 0] * ne[:, 1] * ne[:, 2] * ne[:, 3] == 0] = 0
    return sizes


def _new_strides(kinds: I64, ne: I64) -> I64:
    """The strides that new tensors of these types and shapes have; negative: too large for any."""
    known = tables()
    strides = np.empty_like(ne)
    strides[:, 0] = known.size[kinds]
    strides[:, 1] = strides[:, 0] * (ne[:, 0] // known.block[kinds])
    strides[:, 2] = strides[:, 1] * ne[:, 1]
    strides[:, 3] = strides[:, 2] * ne[:, 2]
    size = strides[:, 1] * (ne[:, 1].astype(np.float64) * ne[:, 2] * ne[:, 3])
    strides[size > MOST_BYTES] = -1
    return strides


def _check_ops(structure: Structure) -> None:
    """Ops exist, carry no function pointer, and nodes have the sources that their op needs."""
    tensors, ops, nodes = structure.tensors, structure.ops, structure.nodes
    refuse(tensors, ops >= OP_COUNT, "its op is none of ggml's", rule="op")
    text = "a custom op carries a function pointer"
    refuse(tensors, tables().custom[ops], text, rule="op-custom")
    needed = least_sources()[ops[nodes]]
    absent = structure.sources[nodes] < 0
    bad = absent & (np.arange(MAX_SRC) < needed[:, None])
    text = "it lacks a source that its op needs"
    refuse(tensors, bad, text, rule="op-source", among=nodes)


def _check_order(structure: Structure) -> None:
    """Each node stands once, after those of its sources that are nodes.

    CPY may name itself as its second source: ggml_cast() builds it so.
    """
    tensors, nodes = structure.tensors, structure.nodes
    turns = np.arange(len(nodes))
    positions = np.full(len(tensors), -1, np.int64)
    positions[nodes] = turns
    refuse(tensors, positions[nodes] != turns, "it is a node twice", rule="order", among=nodes)
    sources = structure.sources[nodes]
    late = (sources >= 0) & (positions[sources] >= turns[:, None])
    if late.any():
        copy = tables().op_names.index("CPY")
        late[:, 1] &= (sources[:, 1] != nodes) | (structure.ops[nodes] != copy)
        text = "it stands before one of its sources"
        refuse(tensors, late, text, rule="order", among=nodes)


def _check_chains(structure: Structure) -> None:
    """Chains of views end: each round of the loop doubles how far every tensor has looked."""
    jumps: I64 = structure.views
    for _ in range(len(jumps).bit_length() + 1):
        if (jumps < 0).all():
            return
        jumps = np.where(jumps >= 0, jumps[jumps], -1)
    refuse(structure.tensors, jumps >= 0, "it is a view of itself", rule="cycle")


def _check_extents(structure: Structure) -> None:
    """Elements are aligned and have places of their own; a view lies in what it is a view of."""
    tensors, known = structure.tensors, tables()
    kinds, ne, nb, sizes = structure.kinds, structure.ne, structure.nb, structure.sizes
    block, size = known.block[kinds], known.size[kinds]
    grain = np.where(block == 1, size, 1)
    bad = (ne > 1) & (nb & (grain - 1)[:, None] != 0)
    refuse(tensors, bad, "its strides are no multiples of its elements", rule="alignment")
    first, second, third, fourth = ne.astype(np.float64).T
    elements = first * second * third * fourth * (size / block)
    text = "its elements lie on each other"
    refuse(tensors, elements > _MOST_OVERLAP * np.maximum(sizes, 1), text, rule="overlap")
    seen = np.flatnonzero((structure.views >= 0) & (sizes > 0))
    room = sizes[structure.views[seen]].astype(np.uint64)
    offsets = tensors["view_offs"][seen]
    outside = (offsets > room) | (sizes[seen].astype(np.uint64) > room - offsets)
    refuse(tensors, outside, "it is not within what it is a view of", rule="bounds", among=seen)
