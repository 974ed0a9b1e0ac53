"""The structure of a graph as columns: ids, shapes, ops, order. Checked without a session.

Every function works on whole arrays, see graphs.py. Indices are into the graph's tensors, -1 is
"none". Sizes are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringline.errors import RefusedError
from ringline.ggml.layout import MAX_SRC, OP_COUNT, TYPE_COUNT
from ringline.ggml.types import tables
from ringline.server.ops import least_sources
from ringline.server.regions import MOST_BYTES
from ringline.wire.graph import GraphBody

__all__ = ["I64", "Mask", "Records", "Structure", "read_structure", "refuse"]

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]


@dataclass(frozen=True, slots=True)
class Structure:
    """A graph whose ids, shapes, ops and order are sound.

    Attributes:
        tensors: the records as they came.      # [n_tensors] RECORD
        nodes: indices of the nodes, in order.  # [n_nodes] i64
        sources: indices of the sources.        # [n_tensors, 10] i64
        views: what each is a view of.          # [n_tensors] i64
        kinds, ops: type and op numbers.        # [n_tensors] i64
        ne, nb: shape and strides.              # [n_tensors, 4] i64
        sizes: by ggml_nbytes.                  # [n_tensors] i64
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


def read_structure(body: GraphBody) -> Structure:
    """Read and check a graph's structure.

    Raises:
        RefusedError: names the tensor and the rule that it breaks.
    """
    tensors = body.tensors
    find = _Finder(tensors)
    nodes = _nodes(body, find)
    kinds, ops = tensors["type"].astype(np.int64), tensors["op"].astype(np.int64)
    ne, nb = tensors["ne"].astype(np.int64), tensors["nb"].astype(np.int64)
    structure = Structure(
        tensors=tensors,
        nodes=nodes,
        sources=find.sources(),
        views=find.views(),
        kinds=kinds,
        ops=ops,
        ne=ne,
        nb=nb,
        sizes=tensor_sizes(tensors, kinds, ne, nb),
    )
    _check_ops(structure)
    _check_order(structure)
    _check_chains(structure)
    return structure


def refuse(tensors: Records, bad: Mask, rule: str, *, among: I64 | None = None) -> None:
    """Refuse a graph because of the first bad tensor.

    Args:
        tensors: records, for the name.                          # [n_tensors]
        bad: which break the rule; in a second dimension: where. # [n_tensors] or [len(among)]
        rule: what is wrong, in words.
        among: indices of the tensors that `bad` is about; None: all of them, in order.

    Raises:
        RefusedError: any is bad.
    """
    # Flat: a reduction along short rows costs much more, and only a refusal needs it.
    if bad.any():
        rows = np.flatnonzero(bad if bad.ndim == 1 else bad.any(axis=1))
        first = int(rows[0] if among is None else among[rows[0]])
        name = bytes(tensors["name"][first]).split(b"\0", 1)[0].decode("utf-8", "replace")
        raise RefusedError(f"tensor {name!r} (id {int(tensors['id'][first]):#x}): {rule}")


class _Finder:
    """From ids to indices."""

    def __init__(self, tensors: Records) -> None:
        self._tensors = tensors
        ids = tensors["id"].astype(np.uint64)
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]
        refuse(tensors, ids == 0, "its id is 0")
        twice = np.zeros(len(ids), np.bool_)
        twice[self._order[1:]] = self._sorted[1:] == self._sorted[:-1]
        refuse(tensors, twice, "another tensor has the same id")

    def __call__(self, ids: npt.NDArray[np.uint64]) -> I64:
        """The indices of ids; -1 for those that no tensor has."""
        if not len(self._sorted):
            return np.full(len(ids), -1, np.int64)
        places = np.minimum(np.searchsorted(self._sorted, ids), len(self._sorted) - 1)
        return np.where(self._sorted[places] == ids, self._order[places], -1)

    def sources(self) -> I64:
        """The indices of all sources, shape [n_tensors, 10]."""
        return self._links(self._tensors["src"].ravel(), MAX_SRC, "source").reshape(-1, MAX_SRC)

    def views(self) -> I64:
        """The indices of what each tensor is a view of, shape [n_tensors]."""
        return self._links(self._tensors["view_src"], 1, "view source")

    def _links(self, ids: npt.NDArray[np.uint64], per_tensor: int, what: str) -> I64:
        links = np.full(len(ids), -1, np.int64)
        given = np.flatnonzero(ids)
        links[given] = self(ids[given])
        unknown = given[links[given] < 0]
        if len(unknown):
            bad = np.zeros(len(self._tensors), np.bool_)
            bad[unknown // per_tensor] = True
            refuse(self._tensors, bad, f"a {what} of it is not in the graph")
        return links


def _nodes(body: GraphBody, find: _Finder) -> I64:
    if not len(body.nodes):
        raise RefusedError("a graph without a node")
    nodes = find(body.nodes)
    if (nodes < 0).any():
        first = int((nodes < 0).argmax())
        raise RefusedError(f"node {first} has the id {int(body.nodes[first])}, which no tensor has")
    return nodes


def tensor_sizes(tensors: Records, kinds: I64, ne: I64, nb: I64) -> I64:
    """Bytes of each tensor: regions.tensor_size() for all of them at once.

    Raises:
        RefusedError: names the tensor and the rule that it breaks.
    """
    known = tables()
    no_type = kinds >= TYPE_COUNT
    kinds = np.where(no_type, 0, kinds)
    blocks = known.block[kinds]
    refuse(tensors, no_type | (blocks == 0), "its type is no tensor type")
    refuse(tensors, ne[:, 0] % blocks != 0, "its rows hold no whole blocks")
    first, second, third, fourth = ne.astype(np.float64).T  # as floats they do not wrap
    refuse(tensors, first * second * third * fourth > MOST_BYTES, "its shape is too large")
    spans = first * nb[:, 0] + second * nb[:, 1] + third * nb[:, 2] + fourth * nb[:, 3]
    refuse(tensors, spans > MOST_BYTES, "its size is too large")
    steps = (ne - 1) * nb
    rows = np.where(blocks == 1, known.size[kinds] + steps[:, 0], ne[:, 0] * nb[:, 0] // blocks)
    sizes: I64 = rows + steps[:, 1] + steps[:, 2] + steps[:, 3]
    sizes[ne[:, 0] * ne[:, 1] * ne[:, 2] * ne[:, 3] == 0] = 0
    return sizes


def _check_ops(structure: Structure) -> None:
    """Ops exist, carry no function pointer, and nodes have the sources that their op needs."""
    tensors, ops, nodes = structure.tensors, structure.ops, structure.nodes
    refuse(tensors, ops >= OP_COUNT, "its op is none of ggml's")
    refuse(tensors, tables().custom[ops], "a custom op carries a function pointer")
    needed = least_sources()[ops[nodes]]
    absent = structure.sources[nodes] < 0
    bad = absent & (np.arange(MAX_SRC) < needed[:, None])
    refuse(tensors, bad, "it lacks a source that its op needs", among=nodes)


def _check_order(structure: Structure) -> None:
    """Each node stands once, after those of its sources that are nodes.

    CPY may name itself as its second source: ggml_cast() builds it so.
    """
    tensors, nodes = structure.tensors, structure.nodes
    turns = np.arange(len(nodes))
    positions = np.full(len(tensors), -1, np.int64)
    positions[nodes] = turns
    refuse(tensors, positions[nodes] != turns, "it is a node twice", among=nodes)
    sources = structure.sources[nodes]
    copy = tables().op_names.index("CPY")
    itself = (sources == nodes[:, None]) & (structure.ops[nodes] == copy)[:, None]
    late = (sources >= 0) & (positions[sources] >= turns[:, None]) & ~itself
    refuse(tensors, late, "it stands before one of its sources", among=nodes)


def _check_chains(structure: Structure) -> None:
    """Chains of views end: each round of the loop doubles how far every tensor has looked."""
    jumps: I64 = structure.views
    for _ in range(len(jumps).bit_length() + 1):
        if (jumps < 0).all():
            return
        jumps = np.where(jumps >= 0, jumps[jumps], -1)
    refuse(structure.tensors, jumps >= 0, "it is a view of itself")
