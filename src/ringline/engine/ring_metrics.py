"""What a ring has done so far, as values: stages, the ways between them. Seconds, bytes, tokens.

All numbers only grow, but for memory; who wants a rate takes the difference of two looks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["COORDINATOR", "EdgeMetrics", "StageMetrics"]

#: stands for the coordinator in an edge.
COORDINATOR: Final = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMetrics:
    """One stage.

    Attributes:
        index: its place in the ring.
        node: endpoint as given; "" for this machine.
        device: name.
        first_layer, n_layers: which layers it has, without the output layer.
        has_output: whether it has the output layer.
        weight_bytes, kv_bytes: what its layers take, and their part of the KV caches.
        memory_free, memory_total: of the device; 0: unknown.
        busy_seconds: the device has computed for this session.
        lock_wait_seconds: computations waited for the device while other sessions had it.
        wait_seconds: it has waited for data of the stage before.
        computations: how many there were.
        state: ok, lost, or unknown: a stock server, or this machine, which count nothing.
        why: the sentence, where it is lost.
    """

    index: int
    node: str
    device: str
    first_layer: int
    n_layers: int
    has_output: bool
    weight_bytes: int = 0
    kv_bytes: int = 0
    memory_free: int = 0
    memory_total: int = 0
    busy_seconds: float = 0.0
    lock_wait_seconds: float = 0.0
    wait_seconds: float = 0.0
    computations: int = 0
    state: str = "unknown"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeMetrics:
    """One way: from stage to stage, or between the coordinator (-1) and the first stage of a node.

    Attributes:
        source, target: numbers of stages.
        path: the one that was taken last; traffic with the coordinator is "hub".
        fell_back: whether the hub is used because a better path failed a while ago.
        transfers: hidden states by path; empty for traffic with the coordinator.
        bytes: of hidden states, or of all messages to or from the coordinator.
    """

    source: int
    target: int
    path: str
    fell_back: bool = False
    transfers: dict[str, int] = field(default_factory=dict)
    bytes: int = 0
