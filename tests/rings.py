"""Rings for the tests: our coordinator over any mix of peers, in this process."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ringline.client.counters import Traffic
from ringline.client.edge import Path as TransferPath
from ringline.client.ring import RemoteDevices
from ringline.engine.ring import Ring
from ringline.engine.ring_context import RingContext
from ringline.engine.ring_model import PlacedModel
from ringline.llama.batch import Batch
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


@contextmanager
def placed(
    model: Path, endpoints: Sequence[str], *, path: TransferPath | None = None
) -> Iterator[PlacedModel]:
    """A model over nodes in this order, as the engine places it; equal shares, one thread."""
    with Ring(endpoints, path=path) as ring:
        yield ring.place(
            model,
            devices=ring.devices,
            tensor_split=[1.0] * len(endpoints),
            n_threads=1,
            repack=False,
        )


def context_for(workload: str, model: PlacedModel) -> RingContext:
    """A context of ours with the sizes of a workload, for the calling thread."""
    plan = workloads.WORKLOADS[workload]
    return model.context(n_ctx=plan.n_ctx, n_batch=plan.n_batch, n_ubatch=plan.n_ubatch)


def prompts_of(workload: str, model: PlacedModel) -> dict[str, list[int]]:
    """The prompts of a workload by name, as tokens."""
    return workloads.prompts(workload, model.model.tokenize)


def paths_of(model: PlacedModel) -> dict[str, int]:
    """How many hidden states took each path so far."""
    return Traffic.total(model.remote.counters.nodes.values()).paths


def greedy(
    context: RingContext,
    prompt: Sequence[int],
    n_predict: int,
    *,
    before_step: Callable[[int], None] = lambda step: None,
) -> list[int]:
    """Continue a prompt with a context of ours; `before_step` gets 0 before the prompt, then 1, ...

    A new context reads what it read before: its sequence 0 is forgotten first.
    """
    context.seq_rm(0)
    batch, ids = Batch(context.n_batch), []
    batch.add_run(prompt, 0, logits_last=True)
    for step in range(n_predict):
        before_step(step)
        context.decode(batch)
        with context.bound():
            ids.append(int(np.argmax(context.logits())))
        batch.clear()
        batch.add(ids[-1], len(prompt) + step, logits=True)
    return ids


def open_peers(stack: ExitStack, kinds: str) -> list[Peer]:
    """Start peers: "r" a ringline node, "s" a stock server, in that order."""
    peers = []
    for kind in kinds:
        if kind == "r":
            peers.append(stack.enter_context(ringline_node("--threads=1")))
        else:
            peers.extend(stack.enter_context(stock_server(1)))
    return peers
