"""`ringline bench groups`: closed-loop streams, what is counted, ratios, and one quick run."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ringline.bench import streams as streams_module
from ringline.bench.cells import Cell
from ringline.bench.cpu import machine_seconds, tree_seconds
from ringline.bench.group_report import GroupReport, PromptFigures
from ringline.bench.groups import FULL, QUICK, Plan, run_groups
from ringline.bench.llama_server import Binaries, answer_times, measure_llama_server
from ringline.bench.prompts import Delay
from ringline.bench.streams import Figures, Load, Request, run_streams
from ringline.client.edge import Path as TransferPath
from ringline.engine.metrics import Summary
from ringline.errors import CallerError, NetworkError, PeerError
from tests.peers.processes import ROOT, run_python

HUB, DIRECT, RENDEZVOUS = TransferPath.HUB, TransferPath.DIRECT, TransferPath.RENDEZVOUS
LOAD = Load(n_prompt=3, n_predict=8, seconds=0.02, requests=2)


class FakeService:
    """Answers at once, or after it has been let go; counts who is asking."""

    def __init__(self, *, live=True, fails_after=None, n_vocab=100):
        self.live = live
        self.n_vocab = n_vocab
        self.lengths = []
        self.prompts = []
        self.most = 0
        self._lock = threading.Lock()
        self._asking = 0
        self._stopped = False
        self._fails_after = fails_after

    def ask(self, prompt, n_predict, request):
        with self._lock:
            self.prompts.append(tuple(prompt))
            self.lengths.append(n_predict)
            self._asking += 1
            self.most = max(self.most, self._asking)
            if self._fails_after is not None and len(self.lengths) > self._fails_after:
                raise PeerError("it broke")
        time.sleep(0.001)
        request.tokens = [time.monotonic()] * n_predict
        with self._lock:
            self._asking -= 1
            return not self._stopped

    def stop(self):
        with self._lock:
            self._stopped = True


def figures(tok_s, *busy):
    return Figures(tok_s, Summary.of([0.5]), Summary.of([0.01, 0.02]), busy or (0.5, 0.25, 0.1, 1))


def report(**more):
    cells = {
        Cell(1, 8, 2, RENDEZVOUS): [figures(10.0), figures(20.0)],
        Cell(2, 8, 2, RENDEZVOUS): [figures(16.0), figures(32.0)],
        Cell(1, 4, 2, RENDEZVOUS): [figures(1.0)] * 2,
        Cell(2, 4, 2, RENDEZVOUS): [figures(9.0)] * 2,
        Cell(3, 8, 3, DIRECT): [figures(10.0)] * 2,
        Cell(3, 8, 3, RENDEZVOUS): [figures(11.0)] * 2,
    }
    prompts = [PromptFigures(0.7, 0.6, 1.0, Delay(0.25, 0.05, 0.4)) for _ in range(2)]
    return GroupReport({"cores": 2}, cells, prompts, **more)


def test_only_tokens_in_the_window_count():
    requests = [
        Request(0.0, [1.0, 2.0, 3.0], 3.0),  # began before it
        Request(2.0, [2.5, 3.0, 3.5], 3.5),
        Request(3.0, [3.9, 4.0], 0.0),  # goes on
    ]
    found = Figures.of(requests, 2.0, 4.0)
    assert found.tok_s == 3.0
    assert (found.ttft.count, found.ttft.median, found.tpot.median) == (1, 0.5, 0.5)


def test_streams_ask_again_at_once_and_never_more_than_there_are():
    service = FakeService(n_vocab=1 << 40)  # no prompt is drawn twice, however many there are
    found = run_streams(service, 4, LOAD)
    assert service.most <= 4
    assert sorted(n for n in service.lengths if n < 8) == [2, 4, 6]  # the first of three streams
    assert max(service.lengths) == 8
    assert {len(prompt) for prompt in service.prompts} == {3}
    assert len(set(service.prompts)) == len(service.prompts)
    assert found.tok_s > 0
    assert found.ttft.count >= 8


def test_the_same_seed_gives_the_same_prompts():
    services = [FakeService(), FakeService()]
    for service in services:
        run_streams(service, 1, LOAD, seed=7)
    first, second = services
    assert all(a == b for a, b in zip(first.prompts, second.prompts, strict=False))


def test_a_service_that_tells_its_tokens_late_is_asked_until_all_are_told():
    service = FakeService(live=False)
    assert run_streams(service, 3, LOAD, meters=lambda: [1.0]).busy == (0.0,)


def test_a_failed_request_ends_the_run():
    # Two to begin with and four in the window are the least: a run of three cannot be whole.
    with pytest.raises(PeerError, match="it broke"):
        run_streams(FakeService(fails_after=3), 2, LOAD)


def test_a_run_without_progress_is_given_up(monkeypatch):
    monkeypatch.setattr(streams_module, "_PATIENCE", 0.1)
    monkeypatch.setattr(streams_module, "_LOOK", 0.01)
    released = threading.Event()

    class Stuck(FakeService):
        def ask(self, prompt, n_predict, request):
            return not released.wait()

        def stop(self):
            released.set()

    with pytest.raises(PeerError, match=r"no request ended for 0\.1 s"):
        run_streams(Stuck(), 2, LOAD)


def test_a_ratio_pairs_the_rounds():
    ratios = report().ratios()
    assert ratios["groups_2/groups_1"] == {"8": pytest.approx(1.6)}
    assert ratios["rendezvous/direct"] == {"8": pytest.approx(1.1)}
    assert ratios["prompt/local"]["ratio"] == pytest.approx(0.6)
    assert ratios["delay/step"]["ratio"] == pytest.approx(0.5)


def test_the_aims_are_those_that_were_measured():
    assert [aim.met for aim in report().aims()] == [True, True, True, True]
    slow = report(llama_server={8: [figures(16.0), figures(32.0)]})
    assert [aim.what for aim in slow.aims() if not aim.met] == [
        "ringline over llama-server, tok/s, 8 streams"
    ]


def test_the_json_has_a_cell_for_each_combination():
    found = report(llama_server={8: [figures(20.0)] * 2}).as_json()
    assert set(found) == {"machine", "load", "cells", "ratios", "llama_server"}
    cell = found["cells"][0]
    assert (cell["groups"], cell["streams"], cell["stages"]) == (1, 8, 2)
    assert (cell["path"], cell["tok_s"], cell["ttft_s"]) == ("rendezvous", 15.0, 0.5)
    assert (cell["tpot_ms"], cell["tpot_p95_ms"]) == (10.0, 20.0)
    assert (cell["busy"], cell["coordinator_busy"]) == ([0.5, 0.25], 0.1)
    assert cell["others_busy"] == pytest.approx(0.15)
    assert found["llama_server"][0]["streams"] == 8
    json.dumps(found)


def test_cells_that_are_compared_stand_together():
    cells = Plan(groups=(1, 2), streams=(8,), stages=(2,), paths=(DIRECT, RENDEZVOUS)).cells()
    assert [(cell.path, cell.groups) for cell in cells] == [
        (DIRECT, 1),
        (DIRECT, 2),
        (RENDEZVOUS, 1),
        (RENDEZVOUS, 2),
    ]
    assert len(FULL.cells()) == 3 * 5 * 2 * 3
    some = Plan(groups=(2,), streams=(8,), stages=(2,), paths=(HUB,), switch_ms=(5.0, 0.5)).cells()
    assert str(some[1]) == "2 groups, 8 streams, 2 stages, hub, switch 0.5 ms"


def test_processor_time_is_that_of_the_process_and_all_below_it():
    before = machine_seconds()
    # A second: what a host takes from a virtual machine is the process's and no processor's.
    code = "import time\nwhile time.process_time() < 1: pass\nprint('done', flush=True)\ninput()"
    command = [
        sys.executable,
        "-c",
        f"import subprocess, sys\nsubprocess.run(['{sys.executable}', ",
    ]
    command[-1] += f"'-c', {code!r}])"
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"done\n"
        assert tree_seconds(process.pid) >= 0.9
        process.communicate(b"\n")
    assert tree_seconds(process.pid) == 0
    assert machine_seconds() >= before + 0.19


def test_tokens_of_llama_server_are_spread_over_the_time_that_it_took():
    answer = {"timings": {"predicted_n": 3, "predicted_ms": 2000.0}}
    assert answer_times(answer, 3, 10.0) == [8.0, 9.0, 10.0]
    with pytest.raises(PeerError, match="3 tokens where 4"):
        answer_times(answer, 4, 10.0)
    with pytest.raises(PeerError, match="answered"):
        answer_times({"error": "no"}, 4, 10.0)


FAKE_RPC_SERVER = """
import socket, sys
server = socket.create_server(("127.0.0.1", int(sys.argv[sys.argv.index("-p") + 1])))
while True:
    server.accept()[0].close()
"""
FAKE_LLAMA_SERVER = """
import json, sys, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.say({"data": [{"meta": {"n_vocab": 50}}]})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["ignore_eos"] and not asked["cache_prompt"] and len(asked["prompt"]) == 3
        time.sleep(0.01)
        self.say({"timings": {"predicted_n": asked["n_predict"], "predicted_ms": 5.0}})

    def say(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass

assert "--rpc" in sys.argv and "-np" in sys.argv
port = int(sys.argv[sys.argv.index("--port") + 1])
ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


def program(folder, name, code):
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{code}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def test_llama_server_is_started_over_rpc_servers_and_asked(tmp_path):
    binaries = Binaries(
        program(tmp_path, "llama-server", FAKE_LLAMA_SERVER),
        program(tmp_path, "rpc-server", FAKE_RPC_SERVER),
    )
    binaries.check()
    found = measure_llama_server(binaries, Path("any.gguf"), 3, LOAD, seed=0)
    assert found.tok_s > 0
    assert found.ttft.count >= 6
    assert len(found.busy) == 2 + 2


def test_a_program_that_ends_at_its_start_is_quoted(tmp_path):
    binaries = Binaries(
        program(tmp_path, "llama-server", "raise SystemExit('no such model')"),
        program(tmp_path, "rpc-server", FAKE_RPC_SERVER),
    )
    with pytest.raises(NetworkError, match=r"llama-server ended at its start.*no such model"):
        measure_llama_server(binaries, Path("any.gguf"), 1, LOAD, seed=0)


def test_what_cannot_be_measured_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(CallerError, match="--streams needs numbers"):
        run_groups(Path("any.gguf"), Plan(streams=(0,)), say=print)
    with pytest.raises(CallerError, match="nothing is no program"):
        Plan(binaries=Binaries(tmp_path / "nothing", tmp_path)).check()
    with pytest.raises(CallerError, match="--path needs some of"):
        Plan(paths=()).check()
    with pytest.raises(CallerError, match=r"nothing\.gguf"):
        run_groups(Path("nothing.gguf"), QUICK, say=print)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--groups=1,two"], "write numbers with commas"),
        (["--load=6"], "tokens of a prompt and of an answer"),
        (["--switch-interval=0"], "write milliseconds, above 0"),
        (["--path=tunnel"], "must be one of hub, direct, rendezvous"),
        (["--llama-server=here"], "needs both"),
    ],
)
def test_arguments_that_make_no_sense_are_refused_in_one_sentence(arguments, complaint):
    command = [sys.executable, "-m", "ringline", "bench", "groups", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert complaint in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_quick_run_writes_all_figures(model_path, tmp_path):
    file = tmp_path / "groups.json"
    command = [
        "-m",
        "ringline",
        "bench",
        "groups",
        "--quick",
        "--groups=2",
        "--path=hub,rendezvous",
        "--load=6,3",
    ]
    printed = run_python([*command, f"--json={file}", f"--model={model_path}"], seconds=500)
    found = json.loads(file.read_text())
    assert set(found) == {"machine", "load", "cells", "ratios"}
    assert found["load"] == {"prompt": 6, "predict": 3}
    assert [(c["groups"], c["streams"], c["stages"], c["path"]) for c in found["cells"]] == [
        (2, 2, 2, "hub"),
        (2, 2, 2, "rendezvous"),
    ]
    for cell in found["cells"]:
        assert len(cell["busy"]) == 2
        assert all(cell[figure] > 0 for figure in ("tok_s", "ttft_s", "tpot_ms"))
        assert cell["tok_s"] == pytest.approx(cell["rounds"][0])
    assert set(found["ratios"]) == {
        "groups_2/groups_1",
        "rendezvous/direct",
        "prompt/local",
        "delay/step",
    }
    assert all(found["ratios"]["prompt/local"][key] > 0 for key in ("ratio", "ring_ms", "local_ms"))
    assert all(found["ratios"]["delay/step"][key] > 0 for key in ("longest_ms", "step_ms"))
    assert "2 groups, 2 streams, 2 stages, rendezvous" in printed
