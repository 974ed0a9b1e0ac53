"""`ringline bench serve`: what is counted, ratios of the same round, aims, and one quick run."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ringline.bench.serve import FULL, QUICK, Plan, run_serve
from ringline.bench.serve_memory import Sample
from ringline.bench.serve_report import Latency, Meters, ServeReport
from ringline.bench.serve_services import ApiService, token_times
from ringline.bench.streams import Figures, Request
from ringline.engine.metrics import Summary
from ringline.errors import CallerError, PeerError
from tests.peers.processes import ROOT, patience

USAGE = b'{"choices": [], "usage": {"completion_tokens": 4}}'


def figures(tok_s: float, step_ms: float, http: float = 0.0) -> Figures:
    """A run with 10 steps a second."""
    meters = Meters(http, 0.5, 1.0, 0.1, 1.7, 10.0, step_ms / 100)
    return Figures(tok_s, Summary.of([0.5]), Summary.of([0.02]), tuple(meters))


def report(memory: list[Sample] | None = None) -> ServeReport:
    bare = [figures(100.0, 10.0), figures(50.0, 20.0), figures(100.0, 10.0)]
    api = [figures(96.0, 10.1, 0.048), figures(48.0, 20.2, 0.024), figures(50.0, 30.0, 0.05)]
    latency = [Latency({"/health": [0.001, 0.002]}, {"/health": [0.005, 0.1]})]
    return ServeReport({"cores": 2}, FULL.load, 2, {8: (bare, api)}, latency, memory or [])


def samples(*http: int) -> list[Sample]:
    return [Sample(100 * i, size, 500) for i, size in enumerate(http)]


def test_a_ratio_pairs_the_rounds_so_that_a_slow_one_slows_both():
    assert report().throughput(8) == pytest.approx(0.96)
    assert report().step(8) == pytest.approx(1.01)


def test_the_cost_of_http_is_processor_time_for_each_token():
    api = report().row(8)["api"]
    assert api["http_us_per_token"] == pytest.approx(500)
    assert report().row(8)["bare"]["http_us_per_token"] == 0


def test_aims_say_what_was_met():
    met = {aim.what: aim.met for aim in report(samples(*[100] * 20)).aims()}
    assert list(met.values()) == [True] * 4
    grown = report(samples(*range(100, 140, 2)))
    assert [aim.met for aim in grown.aims()] == [True, True, False, True]
    assert grown.growth()["http"] > 1.2


def test_memory_that_is_taken_once_at_the_beginning_is_no_growth():
    assert report(samples(50, 90, *[100] * 18)).growth()["http"] == 1


def test_small_questions_are_told_apart_idle_and_loaded():
    both = report().latencies()["/health"]
    assert (both["idle"].p95, both["loaded"].p95) == (0.002, 0.1)


def test_the_report_is_json():
    written = json.loads(json.dumps(report(samples(1, 1)).as_json()))
    assert written["streams"][0]["streams"] == 8
    assert written["latency_ms"]["/health"]["loaded"]["p95"] == 100


def test_tokens_without_an_event_of_their_own_are_spread_over_the_others():
    assert token_times([1.0, 2.0, 3.0, 4.0, 5.0], USAGE, 4) == [1.0, 2.0, 3.0, 4.0]
    assert token_times([1.0, 2.0, 9.0], USAGE, 4) == [1.0, 1.0, 2.0, 2.0]
    assert token_times([9.0], USAGE, 4) == [9.0] * 4


@pytest.mark.parametrize("last", [b"", b"{}", b'{"error": {"message": "it broke"}}'])
def test_a_stream_that_ends_otherwise_is_an_error_and_not_a_slow_run(last):
    with pytest.raises(PeerError, match="the API ended its stream with"):
        token_times([1.0], last, 4)


def test_an_answer_of_another_length_is_refused():
    with pytest.raises(PeerError, match="gave 4 tokens where 5 were asked for"):
        token_times([1.0], USAGE, 5)


def test_a_plan_without_streams_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(CallerError, match="--streams needs numbers from 1 on"):
        run_serve(tmp_path / "none.gguf", Plan(streams=()), say=print)
    with pytest.raises(CallerError, match=r"none\.gguf"):
        run_serve(tmp_path / "none.gguf", QUICK, say=print)


def test_both_arms_run_and_every_figure_is_there(endless_model):
    said = []
    plan = replace(QUICK, streams=(1, 2))
    found = run_serve(endless_model, plan, say=said.append)
    for streams in (1, 2):
        row = found.row(streams)
        assert min(row["bare"]["tok_s"], row["api"]["tok_s"]) > 0
        assert row["step_ratio"] > 0
        assert row["api"]["http_us_per_token"] > 0
        assert row["bare"]["http_us_per_token"] == 0
    assert set(found.latencies()) == {"/health", "/v1/models"}
    assert found.latencies()["/health"]["loaded"].count == QUICK.probes
    assert found.memory[-1].requests == QUICK.memory.requests
    assert min(found.memory[-1].http, found.memory[-1].engine) > 10_000_000
    assert sum("small questions" in line for line in said) == 1


def test_the_command_prints_its_tables_and_writes_the_file(endless_model, tmp_path):
    file = tmp_path / "serve.json"
    command = ["bench", "serve", "--quick", "-m", str(endless_model), "--json", str(file)]
    done = subprocess.run(
        [sys.executable, "-m", "ringline", *command, "--requests", "0", "--stages", "1"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
        timeout=patience(500),
    )
    assert "API tok/s" in done.stdout
    assert "/v1/models" in done.stdout
    written = json.loads(file.read_text())
    assert written["stages"] == 1
    assert written["memory"] == []
    assert written["streams"][0]["throughput_ratio"] > 0


class Slow(BaseHTTPRequestHandler):
    """Sends two tokens, and the rest when it may."""

    may, sent = threading.Event(), threading.Event()

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'data: {"text": "a"}\n\n' * 2)
        self.wfile.flush()
        self.sent.set()
        assert self.may.wait(patience(30))
        self.wfile.write(
            b'data: {"text": "a"}\n\n' * 2 + b"data: " + USAGE + b"\n\ndata: [DONE]\n\n"
        )

    def log_message(self, *_):
        """Say nothing."""


def test_tokens_under_way_at_the_end_of_a_window_are_waited_for_where_they_are_noted_late():
    with ThreadingHTTPServer(("127.0.0.1", 0), Slow) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        service, request = ApiService(server.server_port, 100, []), Request(time.monotonic())
        asking = threading.Thread(target=service.ask, args=([1], 4, request))
        asking.start()
        assert Slow.sent.wait(patience(30))
        noted = bool(request.tokens)
        Slow.may.set()
        asking.join(patience(30))
        server.shutdown()
    assert len(request.tokens) == 4
    assert service.live == noted
