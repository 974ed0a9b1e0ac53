"""Looks at a ring for its metrics: stages, and the ways between them. Seconds, bytes, tokens.

Nothing here waits for a node: what nodes say is what they said last (client/observer.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path as FilePath
from typing import Final

from ringline.client.device import RemoteDevice
from ringline.client.edge import Path
from ringline.client.node import Node
from ringline.client.observer import Health, Sight
from ringline.client.ring import RemoteDevices
from ringline.engine.model_size import ModelSize
from ringline.engine.placement import Stage
from ringline.engine.ring_metrics import COORDINATOR, EdgeMetrics, StageMetrics
from ringline.errors import RemoteError, RinglineError
from ringline.ggml.devices import cpu_device
from ringline.wire.counters import DeviceCounters

__all__ = ["RingGauge"]

_NANO: Final = 1e-9


class RingGauge:
    """Looks at the stages of one placed model."""

    def __init__(
        self,
        remote: RemoteDevices,
        stages: Sequence[Stage],
        model: FilePath,
        *,
        n_layer: int,
        n_tokens: int,
    ) -> None:
        """Note what does not change, and how much memory there is now.

        Args:
            remote: the ring's devices.
            stages: the plan.
            model: its file.
            n_layer: layers without the output layer.
            n_tokens: tokens of context of all KV caches.

        Raises:
            NetworkError, PeerError: a node failed.
        """
        self._remote = remote
        by_name = {device.name: device for device in remote.devices}
        self._devices = [by_name.get(stage.device) for stage in stages]
        self._stages = [
            _first_look(stage, device)
            for stage, device in zip(
                _layers(stages, ModelSize.read(model), n_layer, n_tokens),
                self._devices,
                strict=True,
            )
        ]

    def stages(self, cause: RinglineError | None = None) -> list[StageMetrics]:
        """All stages, with what their nodes said last.

        Args:
            cause: why the engine has ended, if it has: it may name a node.
        """
        observer = self._remote.observer
        sights = observer.look() if observer is not None else {}
        return [
            _seen(stage, device, sights, cause)
            for stage, device in zip(self._stages, self._devices, strict=True)
        ]

    def edges(self) -> list[EdgeMetrics]:
        """The ways from each stage to the next one, then those to and from the coordinator."""
        found = []
        for stage, (source, target) in enumerate(
            zip(self._devices, self._devices[1:], strict=False)
        ):
            if source is not None and target is not None:
                found.append(self._between(stage, source, target))
        first: dict[Node, int] = {}
        for index, device in enumerate(self._devices):
            if device is not None:
                first.setdefault(device.node, index)
        for node, index in first.items():
            out, back = node.traffic.copy().bytes_out, node.traffic.bytes_in
            found.append(EdgeMetrics(source=COORDINATOR, target=index, path=Path.HUB, bytes=out))
            found.append(EdgeMetrics(source=index, target=COORDINATOR, path=Path.HUB, bytes=back))
        return found

    def errors(self) -> dict[str, int]:
        """Errors that the ring has survived, by node and class."""
        errors = self._remote.counters.errors.copy()
        return {f"{peer} {kind}": count for (peer, kind), count in errors.items()}

    def _between(self, stage: int, source: RemoteDevice, target: RemoteDevice) -> EdgeMetrics:
        transfers = self._remote.transfers
        way = transfers.way(source.number, target.number)
        path = way.last or transfers.expected(source.node, target.node)
        fell_back = path is Path.HUB and transfers.could_do_better(source.node, target.node)
        return EdgeMetrics(
            source=stage,
            target=stage + 1,
            path=path,
            fell_back=fell_back,
            transfers=way.taken.copy(),
            bytes=way.size,
        )


def _layers(
    stages: Sequence[Stage], size: ModelSize, n_layer: int, n_tokens: int
) -> list[StageMetrics]:
    """Which layers each stage has: the devices have the last ones, and the output as the last."""
    first = n_layer + 1 - sum(stage.n_layers for stage in stages)
    found = []
    for index, stage in enumerate(stages):
        layers = size.layers[first : first + stage.n_layers]
        has_output = stage.n_layers > 0 and first + stage.n_layers == n_layer + 1
        found.append(
            StageMetrics(
                index=index,
                node=stage.endpoint,
                device=stage.device,
                first_layer=first,
                n_layers=stage.n_layers - has_output,
                has_output=has_output,
                weight_bytes=sum(layer.size for layer in layers),
                kv_bytes=sum(layer.kv for layer in layers) * n_tokens,
            )
        )
        first += stage.n_layers
    return found


def _first_look(stage: StageMetrics, device: RemoteDevice | None) -> StageMetrics:
    free, total = cpu_device().memory() if device is None else device.memory()
    return replace(stage, memory_free=free, memory_total=total)


def _seen(
    stage: StageMetrics,
    device: RemoteDevice | None,
    sights: Mapping[Node, Sight],
    cause: RinglineError | None,
) -> StageMetrics:
    """A stage as its node was seen last."""
    if device is None or device.node not in sights:
        return stage
    sight, number = sights[device.node], device.facts.index
    health, why = sight.health, sight.why
    if isinstance(cause, RemoteError) and cause.peer == stage.node:
        health, why = Health.LOST, str(cause)
    free, total = stage.memory_free, stage.memory_total
    if number < len(sight.memory):
        free, total = sight.memory[number]
    counters = sight.counters
    counts = DeviceCounters()
    if counters is not None and number < len(counters.devices):
        counts = counters.devices[number]
    return replace(
        stage,
        memory_free=free,
        memory_total=total,
        busy_seconds=counts.busy_ns * _NANO,
        lock_wait_seconds=counts.lock_wait_ns * _NANO,
        wait_seconds=counts.data_wait_ns * _NANO,
        computations=counts.computations,
        state=health,
        why=why,
    )
