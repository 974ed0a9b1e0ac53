"""All checks over all nodes: nodes side by side, so that one that is silent holds nobody up."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise, permutations

from ringline.client.node import Node
from ringline.engine.doctor.findings import Finding
from ringline.engine.doctor.known import F32s, compute_here
from ringline.engine.doctor.node import examine_node, reach
from ringline.engine.doctor.ways import examine_way
from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN, TlsFiles

__all__ = ["examine"]


def examine(endpoints: Sequence[Endpoint], tls: TlsFiles = PLAIN) -> list[Finding]:
    """Look at the nodes of a ring and at the ways between them.

    Args:
        endpoints: the nodes, in the order of the stages; at least one.
        tls: our certificate and the ring's CA; PLAIN: no TLS.

    Returns:
        The findings, node by node, then way by way.

    Raises:
        LibraryError: this machine's own ggml cannot be used.
    """
    reference = compute_here()
    with ThreadPoolExecutor(len(endpoints)) as pool, contextlib.ExitStack() as stack:
        reached = list(pool.map(lambda endpoint: reach(endpoint, tls), endpoints))
        nodes = [node for node, _ in reached if node is not None]
        for node in nodes:
            stack.callback(node.close)
        examined = dict(zip(nodes, pool.map(lambda n: _examine(n, reference), nodes), strict=True))
        findings: list[Finding] = []
        for found, first in reached:
            findings += [*first, *(examined[found] if found is not None else [])]
        alive = [node for node in nodes if node.main.error is None]
        return findings + _ways(pool, alive, nodes)


def _examine(node: Node, reference: F32s) -> list[Finding]:
    return examine_node(node, reference)


def _ways(pool: ThreadPoolExecutor, alive: Sequence[Node], order: Sequence[Node]) -> list[Finding]:
    """Each way between two nodes; a source probes one after another, sources side by side."""
    used = set(pairwise(order))

    def from_source(source: Node) -> list[Finding]:
        ways = [way for way in permutations(alive, 2) if way[0] is source]
        return [examine_way(*way, used=way in used) for way in ways]

    return [finding for found in pool.map(from_source, alive) for finding in found]
