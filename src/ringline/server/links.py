"""From ids to indices: which tensor of a graph is whose source, and which are nodes.

Indices are into the graph's tensors, -1 is "none".
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringline.errors import RefusedError
from ringline.ggml.layout import MAX_SRC
from ringline.server.columns import I64, Records, refuse
from ringline.wire.graph import GraphBody

__all__ = ["Links", "read_links"]


@dataclass(frozen=True, slots=True)
class Links:
    """How the tensors of a graph hang together.

    Attributes:
        nodes: indices of the nodes, in order.  # [n_nodes] i64
        sources: indices of the sources.        # [n_tensors, 10] i64
        views: what each is a view of.          # [n_tensors] i64
    """

    nodes: I64
    sources: I64
    views: I64


def read_links(body: GraphBody) -> Links:
    """Find every source, every view and every node by its id.

    Raises:
        RefusedError: an id that is 0, there twice or unknown, or a graph without nodes.
    """
    find = _Finder(body.tensors)
    return Links(nodes=_nodes(body, find), sources=find.sources(), views=find.views())


class _Finder:
    """From ids to indices."""

    def __init__(self, tensors: Records) -> None:
        self._tensors = tensors
        ids = tensors["id"].astype(np.uint64)
        self._order = np.argsort(ids)
        self._sorted = ids[self._order]
        refuse(tensors, ids == 0, "its id is 0", rule="id")
        twice = np.zeros(len(ids), np.bool_)
        twice[self._order[1:]] = self._sorted[1:] == self._sorted[:-1]
        refuse(tensors, twice, "another tensor has the same id", rule="id")

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
            refuse(self._tensors, bad, f"a {what} of it is not in the graph", rule="id")
        return links


def _nodes(body: GraphBody, find: _Finder) -> I64:
    if not len(body.nodes):
        raise RefusedError("a graph without a node", rule="count")
    nodes = find(body.nodes)
    if (nodes < 0).any():
        first = int((nodes < 0).argmax())
        text = f"node {first} has the id {int(body.nodes[first])}, which no tensor has"
        raise RefusedError(text, rule="id")
    return nodes
