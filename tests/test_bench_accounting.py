"""`ringline bench accounting`: what is counted, medians, aims, and a quick run over real nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import make_model
from make_model import ModelSpec
from ringline.bench.accounting import FULL, Plan, _compare, run_accounting
from ringline.bench.accounting_report import AccountingReport, Cell, Figures, parts_name
from ringline.cli.bench_accounting import _parts
from ringline.client.counters import Traffic
from ringline.client.thin import Parts
from ringline.errors import CallerError, PeerError
from tests.peers.processes import run_python

N_VOCAB, ROWS = 300, 2
#: what frames a reply.
REPLY_HEADER = 8


def step(*nodes: tuple[int, int], **commands: int) -> dict[str, Traffic]:
    """A step: bytes out and in of each node; the commands are counted at the first one."""
    made = {f"n{i}": Traffic({}, {"X": out}, in_) for i, (out, in_) in enumerate(nodes)}
    made["n0"].commands.update(commands)
    return made


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    spec = ModelSpec(layers=3, vocab=N_VOCAB)
    return make_model.make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", spec)


def test_a_quick_run_counts_steps_of_all_rows_and_the_growth_of_the_window(model, tmp_path):
    file = tmp_path / "accounting.json"
    command = ["-m", "ringline", "bench", "accounting", "--quick", f"--rows={ROWS}"]
    printed = run_python([*command, f"--json={file}", f"--model={model}"])
    report = json.loads(file.read_text())
    assert set(report) == {"machine", "cells", "aims"}
    none, every = report["cells"]
    assert (none["rows"], none["stages"], none["parts"]) == (ROWS, 2, "none")
    assert every["parts"] == "all"
    for cell in (none, every):
        assert sum(node["bytes_out"] for node in cell["nodes"]) == cell["bytes_out"]
        assert sum(node["bytes_in"] for node in cell["nodes"]) == cell["bytes_in"]
        assert 0 < cell["bytes_out"] <= cell["grow"]["bytes_out"]
    # Without level 5: the logits of each row come back, the graph is named and not sent, and what
    # crosses between the stages is not here.
    logits = 4 * N_VOCAB * ROWS + REPLY_HEADER
    assert none["bytes_in"] == none["grow"]["bytes_in"] == logits
    assert none["commands"]["GRAPH_RECOMPUTE"] == none["commands"]["SEND_TENSOR"] + 1 == 2
    assert "GRAPH_COMPUTE" not in none["commands"]
    # In the step that grows, both graphs are sent, and a mask of twice the length.
    assert none["grow"]["bytes_out"] > 10_000 + none["bytes_out"]
    assert "2 rows, 2 stages, none" in printed
    assert f"{none['bytes_out']:,}" in printed


def test_a_figure_is_the_median_of_the_steps_and_a_rare_command_is_left_out():
    steps = [step((90, 1), (900, 5), GRAPH=1), step((10, 2), (20, 3), RE=2), step((11, 2), (21, 3))]
    steps[2]["n1"].commands["RE"] = 1
    figures = Figures(steps, step((7, 8), (9, 1)), [[1]])
    assert (figures.bytes_out, figures.bytes_in) == (32, 5)
    assert figures.commands == {"RE": 1}
    assert figures.nodes == [("n0", 11, 2), ("n1", 21, 3)]
    assert figures.grow_bytes == (16, 9)


def test_a_figure_of_an_even_number_of_steps_was_counted():
    figures = Figures([step((10, 0)), step((13, 0))], step((1, 1)), [])
    assert figures.bytes_out == 10


def test_the_aims_are_those_of_cells_with_all_parts():
    figures = Figures([step((101, 20))], step((4001, 0)), [])
    cells = {Cell(1, 2, parts): figures for parts in (Parts.none(), Parts.all())}
    cells |= {Cell(5, 2, Parts.all()): figures}
    report = AccountingReport({"cores": 2}, {cell: [one] for cell, one in cells.items()})
    assert [(aim.value, aim.limit, aim.met) for aim in report.aims()] == [
        (101, 100, False),
        (20, 20, True),
        (4001, 4000, False),
    ]
    assert [cell["parts"] for cell in report.as_json()["cells"]] == ["none", "all", "all"]
    assert [aim["met"] for aim in report.as_json()["aims"]] == [False, True, False]


def test_times_are_compared_round_by_round_with_a_step_without_any_part():
    def run(*seconds: float) -> Figures:
        return Figures([step((1, 1))], step((1, 1)), [], seconds)

    none, every = Cell(1, 2, Parts.none()), Cell(1, 2, Parts.all())
    codec = Cell(1, 2, Parts(codec=True, rows=False, sampling=False))
    runs = {none: [run(1.0, 9.0, 1.0), run(2.0)], every: [run(0.9), run(1.8)]}
    report = AccountingReport({}, runs | {codec: [run(1.03), run(2.06)]})
    found = [(aim.value, aim.limit, aim.met) for aim in report.time_aims()]
    assert found == [
        (pytest.approx(0.9), 1.0, True),
        (pytest.approx(1.03), 1.02, False),
    ]
    assert report.milliseconds(none) == pytest.approx(1500.0)
    assert AccountingReport({}, {every: [run(1.0)] * 2}).ratio(every) is None


def test_parts_are_named_by_what_is_on():
    some = Parts(codec=True, rows=False, sampling=True)
    figures = Figures([step((1, 1))], step((1, 1)), [])
    (cell,) = AccountingReport({}, {Cell(1, 2, some): [figures]}).as_json()["cells"]
    assert cell["parts"] == ["codec", "sampling"]
    assert parts_name(some) == "codec+sampling"
    assert [parts_name(parts) for parts in FULL.parts] == [
        "none",
        "codec",
        "rows",
        "sampling",
        "all",
    ]


def test_parts_are_read_as_they_are_named():
    some = Parts(codec=True, rows=False, sampling=True)
    assert _parts("all, none,codec+sampling,sampling + codec,") == [
        Parts.all(),
        Parts.none(),
        some,
    ]
    with pytest.raises(CallerError, match="--parts all,cache: cache must be one of all, none, co"):
        _parts("all,cache")


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"rows": [0]}, "--rows needs numbers from 1 on"),
        ({"rows": [257]}, "--rows 257: one step has at most 256 rows"),
        ({"stages": []}, "--stages needs numbers from 1 on"),
        ({"parts": []}, "--parts needs some of all, none, codec"),
    ],
)
def test_a_plan_that_cannot_be_counted_is_refused(change, rule):
    with pytest.raises(CallerError, match=rule):
        run_accounting(Path("nothing.gguf"), Plan(**change), say=lambda line: None)


def test_parts_that_change_the_tokens_are_an_error():
    first, second = Cell(1, 2, Parts.none()), Cell(1, 2, Parts.all())
    cells = {
        Cell(1, 3, Parts.none()): Figures([], {}, [[9, 9]]),
        first: Figures([], {}, [[1, 2]]),
        second: Figures([], {}, [[1, 3]]),
    }
    _compare(first, cells)
    with pytest.raises(
        PeerError,
        match="1 rows, 2 stages, all gives other tokens than 1 rows, 2 stages, none: row 0, token",
    ):
        _compare(second, cells)
