"""The counts of a node as Prometheus' metrics: names, units, labels. docs/metrics.md lists them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

import ringline
from ringline.ggml.find import PACKAGE_VERSION
from ringline.ggml.library import GGML_VERSION
from ringline.server.context import Node
from ringline.server.limits import MOST_LABELS
from ringline.server.tally import OTHER, Counter, Counts
from ringline.wire.commands import BASE_VERSION, EXTENSION_LEVEL

__all__ = ["NodeMetrics"]

_NANO: Final = 1e-9


class NodeMetrics(Collector):
    """Collects when it is asked."""

    def __init__(self, node: Node, counts: Callable[[], Counts]) -> None:
        """Describe a node whose counts are there for the asking."""
        self._node = node
        self._counts = counts
        self._born = time.time()
        self._named = _Named(Counter.PEER_SENT), _Named(Counter.PEER_RECEIVED)

    def collect(self) -> Iterator[Metric]:
        """All metrics, now."""
        counts = self._counts()
        yield from self._about()
        yield from self._sessions(counts)
        yield from self._devices(counts)
        yield from self._traffic(counts)
        yield from _troubles(counts)

    def _about(self) -> Iterator[Metric]:
        labels = {
            "version": ringline.__version__,
            "engine": f"llama-cpp-python {PACKAGE_VERSION}, ggml {GGML_VERSION}",
            "protocol": ".".join(map(str, BASE_VERSION)),
            "extension_level": str(EXTENSION_LEVEL),
        }
        build = GaugeMetricFamily(
            "ringline_node_build_info",
            "Always 1; the labels say what runs here.",
            labels=list(labels),
        )
        build.add_metric(list(labels.values()), 1)
        yield build
        yield GaugeMetricFamily(
            "ringline_node_start_time_seconds", "When the node began, Unix time.", value=self._born
        )

    def _sessions(self, counts: Counts) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "ringline_node_sessions", "Clients now.", value=counts.get((Counter.OPEN, ""), 0)
        )
        yield GaugeMetricFamily(
            "ringline_node_sessions_limit",
            "Clients at once, --max-sessions.",
            value=self._node.options.max_sessions,
        )
        yield CounterMetricFamily(
            "ringline_node_sessions_started",
            "Sessions that began.",
            value=counts.get((Counter.SESSIONS, ""), 0),
        )

    def _devices(self, counts: Counts) -> Iterator[Metric]:
        names = [device.name for device in self._node.devices]

        def family(counter: Counter, name: str, text: str, unit: float = 1) -> Metric:
            metric = CounterMetricFamily(name, text, labels=["device", "name"])
            for index, device in enumerate(names):
                value = counts.get((counter, str(index)), 0)
                metric.add_metric([str(index), device], value * unit)
            return metric

        yield family(
            Counter.BUSY, "ringline_node_device_compute_seconds", "Time of computing.", _NANO
        )
        yield family(Counter.COMPUTED, "ringline_node_device_computations", "Graphs computed.")
        yield family(
            Counter.LOCK_WAIT,
            "ringline_node_device_lock_wait_seconds",
            "Time that sessions waited while others had the device.",
            _NANO,
        )

    def _traffic(self, counts: Counts) -> Iterator[Metric]:
        waited = sum(n for (counter, _), n in counts.items() if counter == Counter.DATA_WAIT)
        yield CounterMetricFamily(
            "ringline_node_data_wait_seconds",
            "Time that sessions waited for data of another node.",
            value=waited * _NANO,
        )
        clients = CounterMetricFamily(
            "ringline_node_client_bytes",
            "Bytes of messages from and to clients.",
            labels=["direction"],
        )
        clients.add_metric(["received"], counts.get((Counter.CLIENT_RECEIVED, ""), 0))
        clients.add_metric(["sent"], counts.get((Counter.CLIENT_SENT, ""), 0))
        yield clients
        peers = CounterMetricFamily(
            "ringline_node_peer_bytes",
            "Bytes of tensors sent to other nodes and received from them.",
            labels=["peer", "direction"],
        )
        for named, direction in zip(self._named, ("sent", "received"), strict=True):
            for peer, size in named.values(counts).items():
                peers.add_metric([peer, direction], size)
        yield peers


class _Named:
    """Values by labels that come from outside: so many have a name for good, the rest is "other".

    A sheet that ends may bring a label that the gatekeeper's own sheet has no entry for any more.
    What was told under a name stays there, and the others are what is left of the sum: no counter
    ever falls.
    """

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._told: dict[str, int] = {}

    def values(self, counts: Counts) -> Mapping[str, int]:
        """What stands under each name now."""
        found = _by_label(counts, self._counter)
        for label, value in found.items():
            if label != OTHER and (label in self._told or len(self._told) < MOST_LABELS):
                self._told[label] = max(value, self._told.get(label, 0))
        rest = sum(found.values()) - sum(self._told.values())
        return {**self._told, OTHER: rest} if rest > 0 else dict(self._told)


def _troubles(counts: Counts) -> Iterable[Metric]:
    for counter, name, text, label in (
        (Counter.REFUSED, "refusals", "Requests refused, by the rule that they break.", "rule"),
        (Counter.CRASHED, "crashes", "Session processes that died, by signal.", "cause"),
        (
            Counter.HANDSHAKE,
            "handshake_failures",
            "Connections that became no session's, by reason.",
            "reason",
        ),
    ):
        metric = CounterMetricFamily(f"ringline_node_{name}", text, labels=[label])
        for value, count in sorted(_by_label(counts, counter).items()):
            metric.add_metric([value], count)
        yield metric


def _by_label(counts: Counts, wanted: Counter) -> dict[str, int]:
    return {label: value for (counter, label), value in counts.items() if counter == wanted}
