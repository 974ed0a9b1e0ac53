"""Which device holds which layers: pure functions over names and numbers.

The split is libllama's own (llama_model_base::load_tensors in llama-model.cpp of llama-cpp-python
0.3.36): the last `n_gpu_layers` of the n_layer + 1 layers go to the devices, the output layer
counts as one, and device i gets the layers whose relative position lies in its share. That is
computed in single precision, so here too: in double, 3/5 lies on the other side of 0.2 + 0.4.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ringline.errors import CallerError

__all__ = ["choose_devices", "parse_list", "parse_split", "split_layers"]


def parse_list(text: str) -> list[str]:
    """A list in the one syntax that all flags have: commas; spaces around entries are ignored."""
    return [entry.strip() for entry in text.split(",") if entry.strip()]


def parse_split(text: str, n_devices: int) -> list[float]:
    """Read -ts: one share a device, in their order; missing ones are 0, as in llama.cpp.

    Raises:
        CallerError: no number, negative, more shares than devices, or nothing for anybody.
    """
    shares: list[float] = []
    for entry in parse_list(text):
        try:
            shares.append(float(entry))
        except ValueError:
            raise CallerError(f"tensor split {text!r}: {entry!r} is no number") from None
    if len(shares) > n_devices:
        raise CallerError(
            f"tensor split {text!r} has {len(shares)} shares for {n_devices} devices; "
            f"give one for each device, in their order"
        )
    if any(share < 0 for share in shares) or not sum(shares) > 0:
        raise CallerError(f"tensor split {text!r}: shares are 0 or more, and one is more than 0")
    return shares + [0.0] * (n_devices - len(shares))


def choose_devices(wanted: Sequence[str], present: Sequence[str]) -> list[str]:
    """The devices to use, in the order of the stages: those wanted, else all that are present.

    Raises:
        CallerError: a name is unknown or stands there twice.
    """
    for name in wanted:
        if name not in present:
            raise CallerError(f"there is no device {name!r}; this ring has: {', '.join(present)}")
        if list(wanted).count(name) > 1:
            raise CallerError(f"device {name!r} is named twice; a device holds one run of layers")
    return list(wanted or present)


def split_layers(n_layer: int, n_gpu_layers: int, shares: Sequence[float]) -> list[int]:
    """Number of layers on each device, the output layer included.

    Args:
        n_layer: layers of the model, without the output layer.
        n_gpu_layers: how many of the n_layer + 1 go to the devices; negative: all.
        shares: relative share of each device, their sum more than 0.

    Returns:
        One number for each share; what is missing to n_layer + 1 stays on the coordinator.
    """
    total = n_layer + 1
    offloaded = total if n_gpu_layers < 0 else min(n_gpu_layers, total)
    bounds = np.cumsum(np.array(shares, np.float32))
    bounds /= bounds[-1]
    positions = np.arange(offloaded, dtype=np.float32) / np.float32(offloaded)
    places = np.minimum(np.searchsorted(bounds, positions, side="right"), len(shares) - 1)
    return [int(count) for count in np.bincount(places, minlength=len(shares))]
