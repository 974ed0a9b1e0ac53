"""/metrics of the server: what stands there, as Prometheus' own parser reads it."""

from __future__ import annotations

from collections import Counter

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import make_model
from make_model import ModelSpec
from ringline.api.metrics.http import HttpCounts
from ringline.api.prometheus import ServerMetrics
from ringline.engine.events import Timings
from ringline.engine.metrics import GroupMetrics, Meter, SlotMetrics
from ringline.engine.ring_metrics import EdgeMetrics, StageMetrics
from ringline.engine.task import TaskState
from ringline.errors import NetworkError
from tests.api_server import api_server
from tests.scraping import value

KEY = {"Authorization": "Bearer secret"}


def samples_of(text):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def shown(engine=None, **fields):
    facts = {"http": HttpCounts(), "model": "m", "created": 1.0, "ready": True, "restarts": 2}
    facts["losses"] = {("h1:1", "NetworkError"): 3}
    return samples_of(generate_latest(ServerMetrics(engine=engine, **{**facts, **fields})).decode())


def stage(index, **fields):
    facts = {"node": f"h{index}:1", "device": f"RPC{index}", "first_layer": 0, "n_layers": 3}
    return StageMetrics(index=index, **{**facts, "has_output": False, **fields})


def look(**fields):
    meter = Meter([GroupMetrics(2)])
    meter.submitted, meter.rejected = 4, 1
    meter.job_ends(TaskState.DONE, Timings(first_token=0.3, per_token=0.02), 5)
    meter.job_ends(TaskState.DONE, Timings(first_token=700.0), 0)
    meter.job_ends(TaskState.CANCELLED, Timings(), 0)
    meter.engine_ends(NetworkError("gone", peer="h1:1"))
    slots = [SlotMetrics(0, 0, "decoding", 1, 3, 4, 7), SlotMetrics(0, 1, "idle", n_cached=9)]
    found = meter.look(3, [1], slots)
    return type(found)(
        **{name: getattr(found, name) for name in found.__slots__ if name not in fields}, **fields
    )


def test_latencies_are_histograms_that_count_every_request():
    samples, name = shown(look()), "ringline_engine_time_to_first_token_seconds"
    assert value(samples, f"{name}_bucket", le="0.25") == 0
    assert value(samples, f"{name}_bucket", le="0.5") == 1
    assert value(samples, f"{name}_bucket", le="250.0") == 1
    assert value(samples, f"{name}_bucket", le="+Inf") == value(samples, f"{name}_count") == 2
    assert value(samples, f"{name}_sum") == pytest.approx(700.3)
    assert value(samples, "ringline_engine_time_per_output_token_seconds_count") == 1


def test_requests_slots_and_caches_are_what_the_engine_says():
    samples = shown(look(kv_total_tokens=64))
    assert value(samples, "ringline_engine_requests_queued") == 3
    assert value(samples, "ringline_engine_requests_submitted_total") == 4
    assert value(samples, "ringline_engine_requests_rejected_total") == 1
    ended = [value(samples, "ringline_engine_requests_ended_total", state=s) for s in TaskState]
    assert ended == [0, 0, 0, 2, 1, 0]
    assert value(samples, "ringline_engine_slots", group="0", state="decoding") == 1
    assert value(samples, "ringline_engine_slots", group="0", state="idle") == 1
    assert value(samples, "ringline_engine_kv_cache_used_tokens") == 7
    assert value(samples, "ringline_engine_kv_cache_tokens") == 64
    assert value(samples, "ringline_engine_tokens_total", kind="reused") == 5


def test_an_error_stands_under_its_node_and_its_kind():
    samples = shown(look())
    assert value(samples, "ringline_engine_errors_total", node="h1:1", cause="NetworkError") == 1


def test_a_stage_that_counts_nothing_has_no_counters_and_one_that_is_lost_is_down():
    stages = [
        stage(0, state="ok", busy_seconds=1.5, computations=7),
        stage(1, state="unknown"),
        stage(2, state="lost", why="gone", computations=3),
    ]
    samples = shown(look(stages=stages))
    found = {
        dict(labels)["stage"]: number
        for (name, labels), number in samples.items()
        if name == "ringline_stage_computations_total"
    }
    assert found == {"0": 7, "2": 3}
    up = [
        value(samples, "ringline_stage_up", stage=str(n), node=f"h{n}:1", device=f"RPC{n}")
        for n in range(3)
    ]
    assert up == [1, 1, 0]


def test_an_edge_says_its_path_and_whether_it_fell_back():
    edges = [
        EdgeMetrics(
            source=0,
            target=1,
            path="hub",
            fell_back=True,
            transfers={"hub": 2, "rendezvous": 5},
            bytes=70,
        ),
        EdgeMetrics(source=-1, target=0, path="hub", bytes=9),
    ]
    samples = shown(look(edges=edges))
    ends = {"source": "0", "target": "1"}
    assert value(samples, "ringline_edge_bytes_total", **ends) == 70
    assert value(samples, "ringline_edge_transfers_total", **ends, path="rendezvous") == 5
    assert value(samples, "ringline_edge_path", **ends, path="hub") == 1
    assert value(samples, "ringline_edge_path", **ends, path="rendezvous") == 0
    assert value(samples, "ringline_edge_fell_back", **ends) == 1
    assert value(samples, "ringline_edge_bytes_total", source="coordinator", target="0") == 9


def test_without_an_engine_the_server_speaks_for_itself_alone():
    http = HttpCounts(Counter({("/health", "GET", "503"): 2}), under_way=1)
    samples = shown(None, ready=False, http=http)
    assert {name.split("_")[1] for name, _ in samples} == {"api"}
    assert value(samples, "ringline_api_engine_up") == 0
    assert value(samples, "ringline_api_engine_restarts_total") == 2
    lost = {"node": "h1:1", "cause": "NetworkError"}
    assert value(samples, "ringline_api_engine_losses_total", **lost) == 3
    labels = {"route": "/health", "method": "GET", "status": "503"}
    assert value(samples, "ringline_api_requests_total", **labels) == 2


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    model = make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )
    with api_server(model, "--parallel", 2, "-c", 1024, "--api-key", "secret") as found:
        yield found


def requests(server, **labels):
    answer = server.ask("/metrics", headers=KEY)
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return value(samples_of(answer.body.decode()), "ringline_api_requests_total", **labels)


def test_the_page_wants_a_key_where_the_server_does(server):
    assert server.ask("/metrics").status == 401
    assert requests(server, route="none", method="GET", status="401") >= 1


def test_requests_are_counted_by_route_and_status_and_strange_paths_are_one(server):
    for number in range(3):
        assert server.ask(f"/nothing/{number}", headers=KEY).status == 404
    assert requests(server, route="none", method="GET", status="404") == 3
    body = {"prompt": "Go", "max_tokens": 3, "temperature": 0}
    assert server.ask("/v1/completions", body, headers=KEY).status == 200
    assert server.ask("/v1/completions", {"prompt": "Go", "n": -1}, headers=KEY).status == 400
    counted = [
        requests(server, route="/v1/completions", method="POST", status=status)
        for status in ("200", "400")
    ]
    assert counted == [1, 1]


def test_an_openmetrics_scraper_gets_openmetrics(server):
    accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
    answer = server.ask("/metrics", headers=KEY | accept)
    assert answer.headers["content-type"].startswith("application/openmetrics-text")
    assert answer.body.rstrip().endswith(b"# EOF")
