"""How much of a node's memory the stored graphs of one session take, and the limit of it.

A graph is stored by the connection that computed it, for GRAPH_RECOMPUTE and for the codec of level
5; when the last of these forgets it, its room is free again. Sizes are bytes.
"""

from __future__ import annotations

import threading
import weakref

from ringline.errors import RefusedError
from ringline.ggml.layout import TENSOR_SIZE
from ringline.server.graphs import StoredGraph
from ringline.server.limits import MOST_GRAPHS
from ringline.wire.graph import GraphBody

__all__ = ["GraphRoom"]

#: of a tensor beside its struct: a place among the nodes, and in a hash table up to twice as long.
_BESIDE = 8 + 2 * 12


class GraphRoom:
    """Counts the graphs of a session; threads may share it."""

    def __init__(self, most: int = MOST_GRAPHS) -> None:
        self._most = most
        #: reentrant: the garbage collector may free a graph while we hold it.
        self._lock = threading.RLock()
        self._used = 0

    def check(self, body: GraphBody) -> None:
        """Whether there is room for a graph, before any is made.

        Raises:
            RefusedError: the session stores as much as it may; names the limit.
        """
        size = _size(body)
        if size > self._most - self._used:
            raise RefusedError(
                f"a graph of {size} bytes beside {self._used} of stored graphs is more than the "
                f"{self._most} that a session may store",
                rule="limit-graphs",
            )

    def take(self, body: GraphBody, graph: StoredGraph) -> None:
        """Count a graph until it is forgotten."""
        size = _size(body)
        with self._lock:
            self._used += size
        weakref.finalize(graph, self._give_back, size)

    def _give_back(self, size: int) -> None:
        with self._lock:
            self._used -= size


def _size(body: GraphBody) -> int:
    return len(body.tensors) * (TENSOR_SIZE + _BESIDE)
