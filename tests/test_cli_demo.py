"""`ringline demo`: the proof, its figures, and an exit code that one can rely on."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from ringline.bench.demo import ARMS, N_PREDICT, PROMPTS, Arm, ArmResult, DemoResult
from ringline.client.counters import PerStep
from ringline.client.edge import Path
from ringline.engine.demo_model import MODEL_NAME
from tests.commands import Done, ringline


@pytest.fixture(scope="module")
def demo(tmp_path_factory) -> tuple[Done, Any]:
    """One run of the whole demo: how it ended, and the figures it wrote."""
    file = tmp_path_factory.mktemp("demo") / "demo.json"
    done = ringline("demo", "--json", file)
    assert done.code == 0, done.err
    return done, json.loads(file.read_text())


@pytest.mark.model
def test_it_compares_the_local_cpu_with_two_and_three_stages_by_hub_and_directly(demo):
    _, found = demo
    assert set(found) == {"model", "arms", "identical"}
    assert found["model"] == MODEL_NAME
    arms = [(arm["name"], arm["stages"], arm["path"]) for arm in found["arms"]]
    assert arms[:1] == [("local CPU", 0, "local")]
    assert {arm[1:] for arm in arms[1:]} >= {
        (stages, path) for stages in (2, 3) for path in ("hub", "direct")
    }


@pytest.mark.model
def test_all_arms_give_the_same_text(demo):
    _, found = demo
    assert found["identical"] is True
    (md5,) = {arm["md5"] for arm in found["arms"]}
    assert len(md5) == 32


@pytest.mark.model
def test_every_arm_has_its_figures(demo):
    _, found = demo
    for arm in found["arms"]:
        assert set(arm) == {"name", "stages", "path", "md5", "steps", "per_step"}
        assert 0 < arm["steps"] <= len(PROMPTS) * (N_PREDICT - 1)
        assert set(arm["per_step"]) == {"commands", "bytes_out", "bytes_in"}
    assert len({arm["steps"] for arm in found["arms"]}) == 1


@pytest.mark.model
def test_directly_no_hidden_state_passes_through_the_coordinator(demo):
    _, found = demo
    for arm in found["arms"]:
        commands, edges = arm["per_step"]["commands"], max(0, arm["stages"] - 1)
        copies, reads = commands.get("COPY_TENSOR_TO", 0), commands.get("GET_TENSOR", 0)
        if arm["path"] == "direct":
            assert (copies, reads) == (edges, 1)
        elif arm["path"] == "hub":
            assert (copies, reads) == (0, 1 + edges)
        elif arm["path"] == "rendezvous":
            assert (copies, reads, commands["SAMPLE"]) == (0, 0, 1)
        else:
            assert arm["path"] == "local"
            assert commands == {}


@pytest.mark.model
def test_the_hub_costs_the_coordinator_what_the_direct_path_saves(demo):
    _, found = demo
    figures = {(arm["stages"], arm["path"]): arm["per_step"] for arm in found["arms"]}
    hidden_state = 4 * 576  # one token of the demo model, f32
    answer = 64  # more than what a node needs to say that a transfer is done
    for stages in (2, 3):
        hub, direct = figures[stages, "hub"], figures[stages, "direct"]
        saved = (stages - 1) * (hidden_state - answer)
        for direction in ("bytes_in", "bytes_out"):
            assert hub[direction] - direct[direction] >= saved


@pytest.mark.model
def test_token_ids_go_out_and_token_ids_come_back(demo):
    _, found = demo
    (thin,) = [arm for arm in found["arms"] if arm["name"] == "3 stages thin"]
    assert thin["per_step"]["bytes_out"] < 200
    assert thin["per_step"]["bytes_in"] == 12  # the header of a reply, and a token


@pytest.mark.model
def test_it_prints_the_text_and_the_table(demo):
    done, found = demo
    for prompt in PROMPTS:
        assert prompt in done.out
    table = done.out[done.out.index("per decode step") :]
    heading = table.splitlines()[0]
    for arm in found["arms"]:
        assert (arm["name"] in heading) == (arm["stages"] > 0)
        assert f"{arm['md5']}" in table
    assert "COPY_TENSOR_TO" in table
    assert "…" not in table
    assert done.out.endswith("all arms gave the same text\n")
    assert "running 3 stages direct" in done.err


def result(arm: Arm, **commands: float) -> ArmResult:
    return ArmResult(arm, ["text"], "0" * 32, 10, per_step(commands))


def per_step(commands: dict[str, float]) -> PerStep:
    return PerStep(commands=commands, command_bytes=commands, bytes_out=0.0, bytes_in=0.0, paths={})


HUB, DIRECT = Arm("hub", 3, Path.HUB), Arm("direct", 3, Path.DIRECT)
GOOD = [result(HUB, GET_TENSOR=3), result(DIRECT, COPY_TENSOR_TO=2, GET_TENSOR=1)]


def test_a_good_result_has_nothing_to_complain_about():
    assert DemoResult("m", GOOD).complaints == []


@pytest.mark.parametrize(
    ("arm", "complaint"),
    [
        (replace(GOOD[0], md5="1" * 32), "the arms gave different texts"),
        (result(DIRECT, GET_TENSOR=3), "direct: 0.00 COPY_TENSOR_TO a step, expected 2"),
        (
            result(DIRECT, COPY_TENSOR_TO=2, GET_TENSOR=1.5),
            "direct: 1.50 GET_TENSOR a step, expected the result's alone",
        ),
        (result(HUB, COPY_TENSOR_TO=2), "hub: 2.00 COPY_TENSOR_TO a step, expected 0"),
    ],
)
def test_what_it_should_have_shown_and_did_not_is_told(arm, complaint):
    assert DemoResult("m", [*GOOD, arm]).complaints == [complaint]


def test_a_file_that_cannot_be_written_is_told_before_the_work(tmp_path):
    done = ringline("demo", "--json", tmp_path / "absent" / "demo.json")
    assert (done.code, done.out) == (1, "")
    assert done.error.endswith("demo.json cannot be written: No such file or directory")


def test_a_damaged_model_is_told(tmp_path):
    model = tmp_path / "models" / MODEL_NAME
    model.parent.mkdir()
    model.write_bytes(b"GGUF")
    done = ringline("demo", env={"RINGLINE_CACHE": str(tmp_path)})
    assert (done.code, done.out) == (1, "")
    assert f"{model} was damaged" in done.error


def test_the_arms_have_distinct_names():
    assert len({arm.name for arm in ARMS}) == len(ARMS)
