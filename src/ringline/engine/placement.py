"""Which devices a model goes to, in which order, with how many layers each, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringline.engine.balance import Item, Room, balance
from ringline.engine.model_size import ModelSize

__all__ = ["Candidate", "Stage", "balanced_shares", "n_groups_for", "order_devices"]


@dataclass(frozen=True, slots=True)
class Stage:
    """One device of a plan: its name, where it is ("" for this machine), its number of layers."""

    device: str
    endpoint: str
    n_layers: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may hold layers: its name, where it is, its free memory in bytes."""

    device: str
    endpoint: str
    free: int = 0


def order_devices(candidates: Sequence[Candidate]) -> tuple[list[Candidate], str]:
    """Put devices that nobody has ordered into the order of the stages, and say why it is that.

    Args:
        candidates: devices as their nodes were given.
    """
    here = [candidate for candidate in candidates if not candidate.endpoint]
    nodes = list(dict.fromkeys(c.endpoint for c in candidates if c.endpoint))
    away = [[c for c in candidates if c.endpoint == endpoint] for endpoint in nodes]
    order = [candidate for devices in away for candidate in devices] + here
    reasons = ["nodes in the order given"] if len(nodes) > 1 else []
    if any(len(devices) > 1 for devices in away):
        reasons.append("devices of a node together, so that less crosses the network")
    if here and nodes:
        reasons.append("this machine last, so that the logits need not cross the network")
    return order, "; ".join(reasons)


def balanced_shares(
    size: ModelSize, candidates: Sequence[Candidate], *, n_gpu_layers: int, n_ctx: int
) -> list[float]:
    """The default -ts: for each device its number of layers, so that all take the same time.

    Args:
        size: the model.
        candidates: devices in the order of the stages.
        n_gpu_layers: layers that go to them, counted from the end; negative: all.
        n_ctx: tokens of context in all; 0: what the model was trained for.

    Raises:
        CallerError: the layers do not fit.
    """
    tokens = n_ctx or size.n_ctx_train
    items = [Item(layer.read, layer.size + layer.kv * tokens) for layer in size.layers]
    if n_gpu_layers >= 0:
        items = items[max(0, len(items) - n_gpu_layers) :]
    rooms = [Room(candidate.free) for candidate in candidates]
    counts = balance(items, rooms)
    # libllama wants somebody to have a share even where no layer is to be placed.
    return [float(count) for count in counts] if any(counts) else [1.0] * len(counts)


def n_groups_for(stages: Sequence[Stage], parallel: int) -> int:
    """The default number of groups: two where stages would wait for each other otherwise.

    A stage idles while another one computes, unless there is a second step in flight. Where one
    device does all the work, a second group only halves the batches.

    Args:
        stages: the plan.
        parallel: slots in all; each group needs one.
    """
    at_work = {(stage.endpoint, stage.device) for stage in stages if stage.n_layers}
    return min(2, parallel) if len(at_work) > 1 else 1
