"""GET /metrics: the server, its engine and the ring, for Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fastapi import APIRouter, Request
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector
from starlette.responses import Response

from ringline import __version__
from ringline.api.metrics.families import edge_families, engine_families, stage_families
from ringline.api.metrics.http import HttpCounts
from ringline.api.served import served
from ringline.api.state import Condition
from ringline.engine.metrics import EngineMetrics

__all__ = ["ServerMetrics", "router"]

router = APIRouter()


@router.get("/metrics")
async def metrics(request: Request) -> Response:
    """All numbers as they are now; without an engine those of the server alone."""
    found = served(request)
    supervisor = found.supervisor
    page = ServerMetrics(
        http=found.http,
        model=found.options.model_id,
        created=found.created,
        ready=supervisor.state.condition is Condition.READY,
        restarts=max(0, supervisor.restarts),
        losses=supervisor.losses,
        engine=await supervisor.metrics(),
    )
    encode, content_type = choose_encoder(request.headers.get("accept", ""))
    return Response(encode(page), media_type=content_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetrics(Collector):
    """One look at everything.

    Attributes:
        http: requests so far.
        model: its name for clients.
        created: when the server began, seconds since 1970.
        ready: whether the engine answers requests.
        restarts: engines that were started after the first.
        losses: engines that were lost, by node and kind of error.
        engine: its numbers; None: there is none, or it does not answer.
    """

    http: HttpCounts
    model: str
    created: float
    ready: bool
    restarts: int
    losses: Mapping[tuple[str, str], int]
    engine: EngineMetrics | None

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        build = GaugeMetricFamily(
            "ringline_api_build_info",
            "Always 1; the labels say what runs here.",
            labels=["version", "model"],
        )
        build.add_metric([__version__, self.model], 1)
        yield build
        yield GaugeMetricFamily(
            "ringline_api_start_time_seconds", "When the server began, Unix time.", self.created
        )
        yield from self._http()
        yield GaugeMetricFamily("ringline_api_engine_up", "1: requests are answered.", self.ready)
        yield CounterMetricFamily(
            "ringline_api_engine_restarts", "Engines started after the first.", self.restarts
        )
        losses = CounterMetricFamily(
            "ringline_api_engine_losses",
            "Engines that were lost or could not be started, by node and kind of error.",
            labels=["node", "cause"],
        )
        for labels, count in sorted(self.losses.items()):
            losses.add_metric(labels, count)
        yield losses
        if self.engine is not None:
            yield from engine_families(self.engine)
            yield from stage_families(self.engine.stages)
            yield from edge_families(self.engine.edges)

    def _http(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "ringline_api_requests",
            "Requests of HTTP that ended.",
            labels=["route", "method", "status"],
        )
        for labels, count in sorted(self.http.requests.items()):
            requests.add_metric(labels, count)
        yield requests
        yield GaugeMetricFamily(
            "ringline_api_requests_under_way",
            "Requests of HTTP that are being answered.",
            self.http.under_way,
        )
