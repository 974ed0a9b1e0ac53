"""The engine's numbers as Prometheus' metrics: names, units, labels. Pure.

A counter begins at 0 with each engine; Prometheus takes that for the restart that it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.utils import floatToGoString

from ringline.engine.metrics import EdgeMetrics, EngineMetrics, Histogram, StageMetrics

__all__ = ["edge_families", "engine_families", "stage_families"]

#: Path of client/edge.py, which this process does not load.
_PATHS: Final = ("copy", "hub", "direct", "rendezvous")
_SLOT_STATES: Final = ("idle", "prompt", "decoding")
_STAGE_LABELS: Final = ("stage", "node", "device")
Value = Callable[[StageMetrics], float]


def engine_families(metrics: EngineMetrics) -> Iterator[Metric]:
    """What concerns the whole engine."""
    yield _gauge("ringline_engine_uptime_seconds", "Since the engine began.", metrics.uptime)
    yield from _requests(metrics)
    yield _counter(
        "ringline_engine_tokens",
        "Tokens: of prompts decoded, of prompts found in a cache, generated, and embedded.",
        "kind",
        {
            "prompt": metrics.prompt_tokens,
            "reused": metrics.reused_tokens,
            "generated": metrics.generated_tokens,
            "embedded": metrics.embedded_tokens,
        },
    )
    yield _histogram(
        "ringline_engine_time_to_first_token_seconds",
        "From the arrival of a request to its first token, counted where it ends.",
        metrics.ttft_histogram,
    )
    yield _histogram(
        "ringline_engine_time_per_output_token_seconds",
        "Mean time of each token of a request after the first, counted where it ends.",
        metrics.tpot_histogram,
    )
    yield from _slots(metrics)
    errors = CounterMetricFamily(
        "ringline_engine_errors",
        "Errors of the ring by node and kind; those of transfers were survived.",
        labels=["node", "cause"],
    )
    for key, count in sorted(metrics.errors.items()):
        node, _, cause = key.rpartition(" ")
        errors.add_metric([node, cause], count)
    yield errors


def stage_families(stages: Sequence[StageMetrics]) -> Iterator[Metric]:
    """One sample a stage; a stage that cannot say what it computed has no sample of that."""
    gauges: tuple[tuple[str, str, Value], ...] = (
        ("up", "0: its node is lost.", lambda stage: stage.state != "lost"),
        ("layers", "Layers, without the output layer.", lambda stage: stage.n_layers),
        ("output_layer", "1: it has the output layer.", lambda stage: stage.has_output),
        ("weight_bytes", "What its weights take.", lambda stage: stage.weight_bytes),
        ("kv_cache_bytes", "What its part of the KV caches takes.", lambda stage: stage.kv_bytes),
        ("memory_free_bytes", "Free memory of its device.", lambda stage: stage.memory_free),
        ("memory_total_bytes", "Memory of its device.", lambda stage: stage.memory_total),
    )
    counters: tuple[tuple[str, str, Value], ...] = (
        ("compute_seconds", "Time of computing for us.", lambda stage: stage.busy_seconds),
        (
            "lock_wait_seconds",
            "Time that computations waited while other sessions had the device.",
            lambda stage: stage.lock_wait_seconds,
        ),
        (
            "data_wait_seconds",
            "Time of waiting for data of the stage before.",
            lambda stage: stage.wait_seconds,
        ),
        ("computations", "Graphs computed for us.", lambda stage: stage.computations),
    )
    for name, text, value in gauges:
        gauge = GaugeMetricFamily(f"ringline_stage_{name}", text, labels=_STAGE_LABELS)
        for stage in stages:
            gauge.add_metric(_stage_labels(stage), value(stage))
        yield gauge
    for name, text, value in counters:
        counter = CounterMetricFamily(f"ringline_stage_{name}", text, labels=_STAGE_LABELS)
        for stage in stages:
            if stage.state != "unknown":
                counter.add_metric(_stage_labels(stage), value(stage))
        yield counter


def edge_families(edges: Sequence[EdgeMetrics]) -> Iterator[Metric]:
    """What goes from stage to stage, and between the stages' nodes and the coordinator."""
    size = CounterMetricFamily(
        "ringline_edge_bytes",
        "Bytes of hidden states; of all messages where the coordinator is an end.",
        labels=["source", "target"],
    )
    transfers = CounterMetricFamily(
        "ringline_edge_transfers",
        "Hidden states by the path that they took.",
        labels=["source", "target", "path"],
    )
    path = GaugeMetricFamily(
        "ringline_edge_path",
        "1: the path that was taken last.",
        labels=["source", "target", "path"],
    )
    fell_back = GaugeMetricFamily(
        "ringline_edge_fell_back",
        "1: the hub is used, because a better path failed a while ago.",
        labels=["source", "target"],
    )
    for edge in edges:
        ends = [_end(edge.source), _end(edge.target)]
        size.add_metric(ends, edge.bytes)
        if "coordinator" in ends:
            continue
        fell_back.add_metric(ends, edge.fell_back)
        for name in _PATHS:
            path.add_metric([*ends, name], name == edge.path)
            transfers.add_metric([*ends, name], edge.transfers.get(name, 0))
    yield from (size, transfers, path, fell_back)


def _requests(metrics: EngineMetrics) -> Iterator[Metric]:
    yield _gauge(
        "ringline_engine_requests_queued", "Requests that wait for a slot.", metrics.queued
    )
    yield CounterMetricFamily(
        "ringline_engine_requests_submitted", "Requests taken in.", value=metrics.submitted
    )
    yield CounterMetricFamily(
        "ringline_engine_requests_rejected",
        "Requests turned away because the queue was full.",
        value=metrics.rejected,
    )
    ended = {state: metrics.ended.get(state, 0) for state in ("done", "cancelled", "failed")}
    yield _counter("ringline_engine_requests_ended", "Requests that ended.", "state", ended)


def _slots(metrics: EngineMetrics) -> Iterator[Metric]:
    slots = GaugeMetricFamily(
        "ringline_engine_slots", "Slots by what they do.", labels=["group", "state"]
    )
    found = Counter((slot.group, slot.state) for slot in metrics.slots)
    steps = CounterMetricFamily("ringline_engine_steps", "Decodes.", labels=["group"])
    seconds = CounterMetricFamily("ringline_engine_step_seconds", "Time in them.", labels=["group"])
    for number, group in enumerate(metrics.groups):
        for state in _SLOT_STATES:
            slots.add_metric([str(number), state], found[number, state])
        steps.add_metric([str(number)], group.steps)
        seconds.add_metric([str(number)], group.busy_seconds)
    yield from (slots, steps, seconds)
    yield _gauge(
        "ringline_engine_kv_cache_used_tokens",
        "Tokens in the KV caches of slots that have a request.",
        metrics.kv_used_tokens,
    )
    yield _gauge(
        "ringline_engine_kv_cache_tokens",
        "Tokens that all KV caches have room for.",
        metrics.kv_total_tokens,
    )


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, label: str, values: Mapping[str, float]) -> Metric:
    family = CounterMetricFamily(name, text, labels=[label])
    for key, value in values.items():
        family.add_metric([key], value)
    return family


def _histogram(name: str, text: str, histogram: Histogram) -> Metric:
    bounds = [*map(floatToGoString, histogram.bounds), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=histogram.total)


def _stage_labels(stage: StageMetrics) -> list[str]:
    return [str(stage.index), stage.node or "coordinator", stage.device]


def _end(number: int) -> str:
    return "coordinator" if number < 0 else str(number)
