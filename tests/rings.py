"""Rings for the tests: our coordinator over any mix of peers, in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ringline.client.counters import Traffic
from ringline.client.edge import Path as TransferPath
from ringline.client.ring import RemoteDevices
from ringline.net.endpoint import Endpoint
from tests.peers import workloads
from tests.peers.processes import Peer, ringline_node, stock_server


@dataclass
class Run:
    """What a workload gave, and what it cost: ids by prompt, traffic by endpoint."""

    ids: dict[str, list[int]]
    nodes: dict[str, Traffic] = field(default_factory=dict)

    @property
    def paths(self) -> dict[str, int]:
        """How many hidden states took each path."""
        return Traffic.total(self.nodes.values()).paths


def run_ring(
    workload: str,
    model: Path,
    peers: Sequence[Peer | str],
    *,
    path: TransferPath | None = None,
    before: Callable[[RemoteDevices], None] = lambda ring: None,
    after_decode: Callable[[], None] = lambda: None,
) -> Run:
    """Run a workload with our coordinator; raises the ring's own error where a node fails.

    `before` gets the ring before the model is loaded; `after_decode` is called after every decode,
    before the sticky errors are checked. The context has a lane of its own, as in the engine.
    """
    endpoints = [peer if isinstance(peer, str) else peer.endpoint for peer in peers]
    with RemoteDevices([Endpoint.parse(e) for e in endpoints], path=path) as ring:

        def check() -> None:
            after_decode()
            ring.check()

        with ExitStack() as stack:
            stack.enter_context(stack.enter_context(ring.lane()).bound())
            before(ring)
            try:
                ids = workloads.run(
                    workload, model, [h.address for h in ring.handles], after_decode=check
                )
            except BaseException:
                ring.check()
                raise
            ring.check()
        return Run(ids, ring.counters.snapshot())


def open_peers(stack: ExitStack, kinds: str) -> list[Peer]:
    """Start peers: "r" a ringline node, "s" a stock server, in that order."""
    peers = []
    for kind in kinds:
        if kind == "r":
            peers.append(stack.enter_context(ringline_node("--threads=1")))
        else:
            peers.extend(stack.enter_context(stock_server(1)))
    return peers
