"""`ringline bench step` with real peers: it runs, agrees on the tokens and writes its JSON.

No figure is judged here: how fast something is depends on the machine and its other guests.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringline.bench import peers
from ringline.bench.arms import ARMS, COMMAND_ARMS
from ringline.bench.report import COMMAND_RATIOS, RATIOS
from ringline.bench.step import QUICK, run_step
from ringline.errors import CallerError, NetworkError, PeerError
from tests.peers.processes import ROOT, patience, run_python


@pytest.mark.model
@pytest.mark.timeout(600)
def test_a_quick_run_writes_all_figures_and_all_arms_agree(model_path, tmp_path):
    file = tmp_path / "step.json"
    command = [
        "-m",
        "ringline",
        "bench",
        "step",
        "--quick",
        f"--json={file}",
        f"--model={model_path}",
    ]
    printed = run_python(command, seconds=500)
    report = json.loads(file.read_text())
    assert set(report) == {"machine", "ratios", "arms", "micro", "aims"}
    assert report["machine"]["cores"] >= 1
    assert set(report["ratios"]) == set(RATIOS)
    for ratios in [*report["ratios"].values(), *report["micro"]["ratios"].values()]:
        assert all(ratio > 0 for ratio in ratios.values())
    assert [arm["name"] for arm in report["arms"]] == [arm.name for arm in ARMS]
    for arm in report["arms"]:
        assert arm["rounds"] == [{"token_ms": arm["token_ms"], "prompt_ms": arm["prompt_ms"]}]
    by_name = {arm["name"]: arm for arm in report["arms"]}
    assert set(by_name["ringline_hub"]["paths"]) == {"hub"}
    assert "hub" not in by_name["ringline_direct"]["paths"]
    assert set(report["micro"]["ratios"]) == set(COMMAND_RATIOS)
    commands = report["micro"]["commands"]
    assert [series["name"] for series in commands] == [arm.name for arm in COMMAND_ARMS]
    assert all(series[f] > 0 for series in commands for f in ("get_us", "set_us", "bulk_gib"))
    assert report["micro"]["graph"]["n_tensors"] > report["micro"]["graph"]["n_nodes"] > 0
    for arm in ARMS:
        assert arm.label in printed


def test_without_a_checkout_it_says_where_to_run(monkeypatch, tmp_path):
    monkeypatch.setattr(peers.ringline, "__file__", str(tmp_path / "a" / "b" / "__init__.py"))
    with pytest.raises(CallerError, match="run `make bench` in a checkout"):
        peers.find_checkout()


def test_on_a_plain_build_it_says_what_to_build(monkeypatch, tmp_path):
    monkeypatch.setattr(peers, "find_libraries", lambda: tmp_path)
    with pytest.raises(CallerError, match=r"built without llama\.cpp's own RPC"):
        peers.find_checkout()


def test_a_missing_model_is_found_before_anything_starts():
    with pytest.raises(CallerError, match=r"nothing\.gguf"):
        run_step(Path("nothing.gguf"), QUICK, say=lambda line: None)


def test_a_client_that_fails_is_quoted():
    with pytest.raises(PeerError, match=r"micro ended with exit code 2: .*--rpc"):
        peers.run_client(ROOT, "micro", [])


def test_a_client_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(peers, "_CLIENT_SECONDS", 0.01)
    with pytest.raises(PeerError, match="did not end within"):
        peers.run_client(ROOT, "micro", ["--rpc=127.0.0.1:1"])


def test_a_stock_server_that_does_not_start_is_quoted(tmp_path):
    with pytest.raises(NetworkError, match=r"ended at its start with exit code 1: .*tests"):
        peers.StockServers(tmp_path, 1, n_threads=1)  # no checkout: no module tests.peers there


def test_stock_servers_end_when_they_are_closed():
    with peers.StockServers(ROOT, 2, n_threads=1) as servers:
        processes = [server.process for server in servers._servers]
        assert len(set(servers.endpoints)) == 2
        assert all(process.poll() is None for process in processes)
    assert all(process.wait(patience(60)) is not None for process in processes)
    servers.close()
