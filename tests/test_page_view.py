"""What the page shows is right: rates, shares, and what is left of a ring whose engine is gone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ringline.api.page.ring_view import RingView, Viewer, names
from ringline.api.state import Condition, EngineState
from ringline.engine.metrics import (
    TTFT_BOUNDS,
    EdgeMetrics,
    EngineMetrics,
    Histogram,
    StageMetrics,
    Summary,
)
from ringline.engine.placement import Stage

READY = EngineState(Condition.READY, loaded=1.0)
NODES = ("10.0.0.1:50052", "10.0.0.2:50052")
CAUSE = "node 10.0.0.2:50052: GRAPH_COMPUTE: the node closed the connection"


def look(uptime: float, *, sent: int = 0, busy: float = 0.0, computations: int = 1, **more: object):
    """Counters of a ring of two stages."""
    stages = [
        StageMetrics(
            index=index,
            node=node,
            device=f"RPC{index}",
            first_layer=4 * index,
            n_layers=4,
            has_output=index == 1,
            busy_seconds=busy,
            computations=computations,
            state="ok",
        )
        for index, node in enumerate(NODES)
    ]
    metrics = EngineMetrics(
        uptime=uptime,
        queued=0,
        submitted=0,
        ended={},
        prompt_tokens=0,
        reused_tokens=0,
        generated_tokens=0,
        ttft=Summary(),
        tpot=Summary(),
        groups=[],
        stages=stages,
        edges=[EdgeMetrics(source=0, target=1, path="rendezvous", bytes=sent)],
    )
    return replace(metrics, **more)


def shown(*looks: EngineMetrics) -> RingView:
    """The view after all these looks."""
    viewer = Viewer(NODES)
    return [viewer.view(READY, metrics) for metrics in looks][-1]


def test_bytes_and_tokens_per_second_are_differences_over_the_engines_own_time():
    view = shown(look(10.0), look(12.0, sent=3000, generated_tokens=50, prompt_tokens=400))
    assert view.edges[0].bytes_per_second == 1500
    assert (view.tokens_per_second, view.prompt_tokens_per_second) == (25, 200)


def test_a_look_that_is_shown_twice_keeps_its_rates():
    newest = look(12.0, sent=3000)
    assert shown(look(10.0), newest, newest).edges[0].bytes_per_second == 1500


def test_rates_are_of_the_last_seconds_not_of_the_whole_life():
    burst = [look(float(t), sent=9000, generated_tokens=90) for t in range(2, 9)]
    view = shown(look(1.0), *burst)
    assert (view.edges[0].bytes_per_second, view.tokens_per_second) == (0, 0)


def test_a_new_engines_counters_are_not_compared_with_the_old_ones():
    view = shown(look(500.0, sent=10**9, generated_tokens=10**6), look(1.0, sent=10))
    assert (view.edges[0].bytes_per_second, view.tokens_per_second) == (0, 0)
    assert (
        shown(look(500.0, sent=10**9), look(1.0), look(2.0, sent=7)).edges[0].bytes_per_second == 7
    )


def test_the_busy_share_is_that_of_the_last_seconds_and_at_most_one():
    looks = [look(float(t), busy=0.25 * t) for t in range(1, 8)]
    assert shown(*looks).stages[0].busy_share == pytest.approx(0.25)
    assert shown(look(1.0), look(3.0, busy=9.0)).stages[1].busy_share == 1.0


def test_no_share_is_made_up_before_a_node_has_told_anything():
    silent = look(1.0, computations=0)
    assert shown(silent, look(2.0, busy=40.0)).stages[0].busy_share is None


def test_a_stock_node_has_no_busy_share_instead_of_zero():
    def stock(uptime: float) -> EngineMetrics:
        metrics = look(uptime)
        return replace(metrics, stages=[replace(s, state="unknown") for s in metrics.stages])

    view = shown(stock(1.0), stock(5.0))
    assert (view.stages[0].busy_share, view.stages[0].state) == (None, "unknown")


def test_latencies_are_of_the_requests_that_ended_lately():
    def histogram(*values: float) -> Histogram:
        filled = Histogram.over(TTFT_BOUNDS)
        for value in values:
            filled.add(value)
        return filled

    first = look(1.0, ttft_histogram=histogram(8.0))
    second = look(3.0, ttft_histogram=histogram(8.0, 0.2, 0.4))
    assert shown(first).ttft_lately is None
    assert shown(first, second).ttft_lately == pytest.approx(0.3)


def test_a_node_that_the_engine_calls_lost_says_why_while_the_engine_still_runs():
    metrics = look(1.0)
    lost = replace(metrics.stages[1], state="lost", why=CAUSE)
    view = shown(replace(metrics, stages=[metrics.stages[0], lost]))
    assert [stage.state for stage in view.stages] == ["ok", "lost"]
    assert view.stages[1].why == CAUSE


def test_the_stage_that_the_end_of_the_engine_names_is_lost_until_another_one_runs():
    viewer = Viewer(NODES)
    viewer.view(READY, look(1.0))
    states = []
    for state in (
        EngineState(Condition.LOST, CAUSE),
        EngineState(Condition.STARTING, loaded=0.3),
    ):
        view = viewer.view(state, None)
        states.append([stage.state for stage in view.stages])
        assert (view.stages[1].why, view.stages[1].n_layers) == (CAUSE, 4)
    assert states == [["waiting", "lost"]] * 2
    assert view.loading == 0.3
    assert [stage.state for stage in viewer.view(READY, look(0.5)).stages] == ["ok", "ok"]


def test_counters_of_a_lost_engine_are_not_shown_as_living():
    view = Viewer(NODES).view(EngineState(Condition.LOST, CAUSE), look(9.0))
    assert [stage.state for stage in view.stages] == ["waiting", "lost"]
    assert view.edges == []


def test_who_looks_before_there_was_an_engine_sees_the_nodes():
    view = Viewer(NODES).view(EngineState(Condition.STARTING), None)
    assert [(stage.node, stage.n_layers) for stage in view.stages] == [(n, None) for n in NODES]


def test_who_looks_after_the_engine_was_lost_sees_its_plan():
    plan = [Stage("CUDA0", NODES[0], 5), Stage("CPU", NODES[1], 4)]
    view = Viewer(NODES).view(EngineState(Condition.LOST, CAUSE), None, plan=plan)
    first, last = view.stages
    assert (first.device, first.first_layer, first.n_layers, first.has_output) == (
        "CUDA0",
        0,
        5,
        False,
    )
    assert (last.first_layer, last.n_layers, last.has_output, last.state) == (5, 3, True, "lost")


@pytest.mark.parametrize(
    ("sentence", "found"),
    [
        ("node 10.0.0.1:5005: silent", True),
        ("the way to 10.0.0.1:5005 broke", True),
        ("it was 10.0.0.1:5005.", True),
        ("node 10.0.0.1:50052: silent", False),
        ("node 110.0.0.1:5005: silent", False),
        ("node x-10.0.0.1:5005: silent", False),
        ("the engine was ended by SIGKILL", False),
    ],
)
def test_a_sentence_names_a_node_only_with_its_whole_endpoint(sentence, found):
    assert names(sentence, "10.0.0.1:5005") is found
    assert not names(sentence, "")
