"""Medians, ratios and aims of a measurement, and what it says when arms differ."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ringline.bench import arms as arms_module
from ringline.bench.arms import ARMS, COMMAND_ARMS, Arms, measure_commands
from ringline.bench.report import (
    Aim,
    GraphFigures,
    Series,
    StepReport,
    first_difference,
    in_turns,
)
from ringline.errors import PeerError
from ringline.net.endpoint import Endpoint

SERVERS = {"stock": [Endpoint("s", 1), Endpoint("s", 2)], "ringline": [Endpoint("r", 1)] * 2}


def series(name, *figures, unit="ms"):
    return Series(name, name, tuple({unit: value} for value in figures))


def report(ours=0.9, rate=2.0, graph_ms=0.5):
    arms = [Series(a.name, a.label, ({"token_ms": 10.0, "prompt_ms": 100.0},)) for a in ARMS]
    arms[-1] = Series("ringline_direct", "", ({"token_ms": 10 * ours, "prompt_ms": 100 * ours},))
    figures = {"get_us": 10.0, "set_us": 1.0, "bulk_gib": 1.0}
    commands = [Series(a.name, a.label, (figures,)) for a in COMMAND_ARMS]
    commands[-1] = Series("ringline", "", ({**figures, "bulk_gib": rate},))
    return StepReport(
        {"cores": 2}, arms, commands, GraphFigures(677, 496, 9, graph_ms, graph_ms, graph_ms)
    )


def test_a_ratio_pairs_the_rounds_so_that_a_slow_minute_does_not_count():
    ours, base = series("ours", 9.0, 90.0, 9.0), series("base", 10.0, 100.0, 10.0)
    assert ours.over(base, "ms") == pytest.approx(0.9)
    assert ours.median("ms") == 9.0


def test_a_slow_round_of_one_arm_alone_does_not_move_the_median():
    ours, base = series("ours", 9.0, 99.0, 9.0), series("base", 10.0, 10.0, 10.0)
    assert ours.over(base, "ms") == pytest.approx(0.9)


def test_the_best_compares_the_fastest_rounds():
    ours, base = series("ours", 12.0, 8.0), series("base", 10.0, 30.0)
    assert ours.best_over(base, "ms") == pytest.approx(0.8)


def test_arms_with_another_number_of_rounds_are_not_compared():
    with pytest.raises(ValueError, match="zip"):
        series("ours", 1.0, 2.0).over(series("base", 1.0), "ms")


def test_every_second_round_is_reversed():
    assert list(in_turns("abc", 3)) == list("abccbaabc")


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"a": [1, 2], "b": [3]}, None),
        ({"a": [1, 9], "b": [3]}, "a, token 2"),
        ({"a": [1, 2], "b": []}, "b, token 1"),
        ({"a": [1], "b": [3]}, "a, token 2"),
        ({"a": [1, 2, 5], "b": [3]}, "a, token 3"),
        ({"a": [1, 2]}, "other prompts: a instead of a, b"),
    ],
)
def test_the_first_difference_is_named(found, said):
    assert first_difference({"a": [1, 2], "b": [3]}, found) == said


@pytest.mark.parametrize(
    ("value", "at_most", "met"),
    [(1.0, True, True), (1.01, True, False), (1.0, False, True), (0.99, False, False)],
)
def test_an_aim_is_met_at_its_limit(value, at_most, met):
    assert Aim("it", value, 1.0, at_most).met is met


def test_the_aims_are_those_of_the_report():
    assert all(aim.met for aim in report().aims())
    assert [aim.met for aim in report(ours=1.1).aims()] == [False, False, *[True] * 4]
    assert [aim.met for aim in report(rate=0.5).aims()] == [True, True, False, *[True] * 3]
    assert [aim.met for aim in report(graph_ms=2.0).aims()] == [*[True] * 3, *[False] * 3]


def test_the_json_holds_machine_ratios_arms_micro_and_aims():
    value = json.loads(json.dumps(report().as_json()))
    assert set(value) == {"machine", "ratios", "arms", "micro", "aims"}
    ratios = value["ratios"]["ringline_direct/stock"]
    assert ratios["token"] == ratios["prompt"] == ratios["token_best"] == pytest.approx(0.9)
    assert [arm["name"] for arm in value["arms"]] == [arm.name for arm in ARMS]
    assert value["arms"][0]["rounds"] == [{"token_ms": 10.0, "prompt_ms": 100.0}]
    assert value["micro"]["ratios"]["ringline/stock"] == {"get": 1.0, "set": 1.0, "bulk_rate": 2.0}
    assert value["micro"]["graph"]["n_tensors"] == 677


@pytest.fixture
def clients(monkeypatch):
    """Stands in for the clients: what each module answers, and the arguments of each call."""
    timings = {"ms_per_token": 1.0, "prompt_ms": 2.0}
    answers = {
        module: {"ids": {"p": [1, 2]}, "timings": timings, "get_us": 1.0}
        for module in ("stock_client", "ringline_client", "micro", "ringline_micro")
    }
    calls = []

    def run_client(checkout, module, arguments):
        calls.append((module, arguments))
        return answers[module]

    monkeypatch.setattr(arms_module, "run_client", run_client)
    answers["calls"] = calls
    return answers


def test_an_arm_names_its_servers_and_splits_evenly(clients):
    arms = Arms(Path(), Path("m.gguf"), SERVERS)
    for arm in ARMS:
        arms.run(arm, token="decode", prompt="prompt")
    by_arm = dict(zip((arm.name for arm in ARMS), clients["calls"][::2], strict=True))
    assert not any("--rpc" in argument for argument in by_arm["local"][1])
    assert {"--rpc=s:1,s:2", "--tensor-split=1,1"} <= set(by_arm["stock"][1])
    assert {"--rpc=r:1,r:1", "--hub"} <= set(by_arm["ringline_hub"][1])
    assert [series.rounds for series in arms.series] == [({"token_ms": 1.0, "prompt_ms": 2.0},)] * 6


def test_one_workload_for_both_figures_runs_once(clients):
    Arms(Path(), Path(), SERVERS).run(ARMS[0], token="prompt", prompt="prompt")
    assert len(clients["calls"]) == 1


def test_an_arm_with_other_tokens_ends_the_measurement(clients):
    arms = Arms(Path(), Path(), SERVERS)
    arms.run(ARMS[0], token="decode", prompt="decode")
    clients["ringline_client"] = {**clients["stock_client"], "ids": {"p": [1, 3]}}
    said = "'ringline, stock servers' differs from 'local CPU' in workload decode at p, token 2"
    with pytest.raises(PeerError, match=said):
        arms.run(ARMS[2], token="decode", prompt="decode")


def test_a_direct_arm_that_took_the_hub_ends_the_measurement(clients):
    arms = Arms(Path(), Path(), SERVERS)
    clients["ringline_client"]["paths"] = {"direct": 30, "hub": 1}
    arms.run(ARMS[4], token="decode", prompt="decode")
    with pytest.raises(PeerError, match="direct': a hidden state took the way through the coord"):
        arms.run(ARMS[5], token="decode", prompt="decode")


def test_single_commands_are_timed_by_each_client_on_each_server(clients):
    found = measure_commands(Path(), SERVERS, rounds=2, repeat=3)
    assert [len(series.rounds) for series in found] == [2, 2, 2, 2]
    modules = [module for module, _ in clients["calls"][:4]]
    assert modules == ["micro", "ringline_micro", "micro", "ringline_micro"]
    assert clients["calls"][0][1] == ["--rpc=s:1", "--repeat=3"]
