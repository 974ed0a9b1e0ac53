"""Which devices a model goes to, in which order, with how many layers each, and why. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ringline.engine.balance import Item, Room, balance
from ringline.engine.model_size import ModelSize

__all__ = [
    "PIPELINE_UBATCH",
    "Candidate",
    "Stage",
    "balanced_shares",
    "n_groups_for",
    "n_ubatch_for",
    "order_devices",
]

#: libllama's own number of tokens that are computed at once.
ONE_STAGE_UBATCH: Final = 512
#: pieces of a prompt that several stages work on at once. Measured with 448 tokens over two stages
#: of one thread on a busy machine: pieces of 512 took 1.3 times as long as one machine alone, of
#: 128 and 64 0.85 times, of 32 1.9 times: ggml's attention on a CPU is slow for fewer than 64 rows.
PIPELINE_UBATCH: Final = 64


@dataclass(frozen=True, slots=True)
class Stage:
    """One device of a plan: its name, where it is ("" for this machine), its number of layers."""

    device: str
    endpoint: str
    n_layers: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """A device that may hold layers.

    Attributes:
        device: its name.
        endpoint: where it is; "" for this machine.
        free: bytes of free memory; 0: unknown.
        kind: what its node calls it, CPU or CUDA for example; "" if it does not say.
    """

    device: str
    endpoint: str
    free: int = 0
    kind: str = ""


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

    A device takes as long as it reads. A CPU that serves several requests takes as long as it
    multiplies, and the output matrix of a few bits more is not slower by these bits.

    Args:
        size: the model.
        candidates: devices in the order of the stages.
        n_gpu_layers: layers that go to them, counted from the end; negative: all.
        n_ctx: tokens of context in all; 0: what the model was trained for.

    Raises:
        CallerError: the layers do not fit.
    """
    tokens = n_ctx or size.n_ctx_train
    cpus = all(candidate.kind == "CPU" for candidate in candidates)
    items = [
        Item((cpus and layer.work) or layer.read, layer.size + layer.kv * tokens)
        for layer in size.layers
    ]
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
    return min(2, parallel) if _n_at_work(stages) > 1 else 1


def n_ubatch_for(stages: Sequence[Stage]) -> int:
    """The default number of tokens that are computed at once.

    A prompt of one piece keeps one stage busy at a time; in several pieces it keeps them all.
    """
    return PIPELINE_UBATCH if _n_at_work(stages) > 1 else ONE_STAGE_UBATCH


def _n_at_work(stages: Sequence[Stage]) -> int:
    return len({(stage.endpoint, stage.device) for stage in stages if stage.n_layers})
