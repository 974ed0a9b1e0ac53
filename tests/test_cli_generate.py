"""`ringline generate`: text to stdout, talk to stderr, flags that mean what llama.cpp's mean."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack
from typing import Any

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.llama.sampler import SamplingParams
from tests.commands import Done, ringline
from tests.peers.workloads import LONG_TEXT
from tests.rings import open_peers

PROMPT = "Once upon a time"
N_PREDICT = 16
#: five layers with the output layer, which counts as one.
SPEC = ModelSpec(layers=4)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        yield ",".join(peer.endpoint for peer in open_peers(stack, "rrr"))


def library(model, *, sampling: SamplingParams | None = None) -> tuple[str, list[int]]:
    """The text and the ids that a program gets on this machine alone."""
    with Ring() as ring, ring.load(model, n_threads=1) as loaded:
        run = loaded.generate(PROMPT, n_predict=N_PREDICT, sampling=sampling)
        return "".join(run), run.ids


@pytest.fixture(scope="module")
def greedy(small):
    return library(small)


def generate(model, *arguments: object, env: dict[str, str] | None = None) -> Done:
    """Greedy, unless the arguments say otherwise; it must succeed."""
    fixed = ("-n", N_PREDICT, "--temp", 0, "-t", 1)
    done = ringline("generate", "-m", model, *fixed, *arguments, env=env)
    assert done.code == 0, done.err
    return done


def report(model, *arguments: object, env: dict[str, str] | None = None) -> Any:
    return json.loads(generate(model, "--json", *arguments, env=env).out)


def layers(found: Any) -> dict[str, int]:
    return {stage["device"]: stage["layers"] for stage in found["stages"]}


def test_text_goes_to_stdout_and_talk_to_stderr(small, nodes, greedy):
    done = generate(small, "--rpc", nodes, "-p", PROMPT)
    assert done.out == greedy[0] + "\n"
    stages, speed = done.err.splitlines()
    for number, endpoint in enumerate(nodes.split(",")):
        assert f"RPC{number} ({endpoint}) " in stages
    assert f"generated {N_PREDICT} tokens" in speed


@pytest.mark.model
def test_stages_of_its_own_write_the_text_that_the_library_writes(model_path):
    done = generate(model_path, "--local-stages", 2, "-p", PROMPT)
    assert done.out == library(model_path)[0] + "\n"


def test_json_is_one_object_and_nothing_else(small, nodes, greedy):
    found = report(small, "--rpc", nodes, "-p", PROMPT)
    assert (found["text"], found["ids"]) == greedy
    assert found["stop_reason"] == "token limit"
    assert [stage["endpoint"] for stage in found["stages"]] == nodes.split(",")
    assert sum(layers(found).values()) == SPEC.layers + 1
    assert found["steps"] == len(found["token_seconds"]) == N_PREDICT - 1
    assert found["per_step"]["commands"]["SAMPLE"] == 1
    assert found["per_step"]["bytes_in"] == 12  # a reply's header, and a token


def test_without_level_5_the_logits_come_back(small, nodes, greedy):
    found = report(small, "--rpc", nodes, "-p", PROMPT, env={"RINGLINE_PARTS": "none"})
    assert (found["text"], found["ids"]) == greedy
    assert found["per_step"]["commands"]["GET_TENSOR"] == 1
    assert found["per_step"]["bytes_in"] >= 4 * SPEC.vocab


def test_a_part_that_does_not_exist_is_refused(small, nodes):
    env = {"RINGLINE_PARTS": "logits"}
    done = ringline("generate", "-m", small, "--rpc", nodes, "-p", PROMPT, env=env)
    assert "RINGLINE_PARTS: logits must be one of all, none, codec, rows" in done.error


@pytest.mark.parametrize(
    ("arguments", "env"),
    [(["--stats"], {}), ([], {"RINGLINE_STATS": "1"}), ([], {"GGML_RPC_STATS": "1"})],
)
def test_statistics_are_a_table_on_stderr_with_a_column_a_node(
    arguments, env, small, nodes, greedy
):
    done = generate(small, "--rpc", nodes, "-p", PROMPT, *arguments, env=env)
    assert done.out == greedy[0] + "\n"
    table = {line.partition("  ")[0]: line for line in done.err.splitlines()[2:]}
    assert f"{N_PREDICT - 1} decode steps" in done.err
    assert table["per decode step"].split()[3:] == [*nodes.split(","), "all", "nodes"]
    assert table["SAMPLE"].split()[1:3] == ["-", "-"]
    assert table["bytes out"].split()[-1] != "0"


def test_without_being_asked_it_shows_no_statistics(small, nodes):
    done = generate(small, "--rpc", nodes, "-p", PROMPT, env={"RINGLINE_STATS": ""})
    assert "bytes out" not in done.err


def test_the_hub_can_be_forced_and_is_counted(small, nodes, greedy):
    done = generate(
        small, "--rpc", nodes, "-p", PROMPT, "--json", "--stats", env={"RINGLINE_P2P": "0"}
    )
    found = json.loads(done.out)
    assert found["ids"] == greedy[1]
    assert found["per_step"]["paths"] == {"hub": 2.0}
    assert found["per_step"]["commands"]["GET_TENSOR"] == 2
    assert "hidden states: hub" in done.err


def test_a_prompt_may_stand_in_a_file(small, tmp_path):
    file = tmp_path / "prompt.txt"
    file.write_text("Größe 日本\n", encoding="utf-8")
    from_file = report(small, "-f", file)
    assert from_file["prompt_tokens"] > len("Größe 日本")
    assert from_file == {**report(small, "-p", "Größe 日本\n"), **times(from_file)}


def times(found: Any) -> dict[str, Any]:
    return {name: found[name] for name in ("prompt_seconds", "token_seconds")}


@pytest.mark.parametrize(
    "devices", ["RPC2,RPC0,RPC1", "RPC1,RPC0", "RPC2", "RPC0,RPC1,CPU", "CPU, RPC2", "CPU"]
)
def test_devices_are_the_stages_in_the_order_named(devices, small, nodes, greedy):
    found = report(small, "--rpc", nodes, "-p", PROMPT, "--device", devices)
    assert list(layers(found)) == [name.strip() for name in devices.split(",")]
    assert sum(layers(found).values()) == SPEC.layers + 1
    assert found["ids"] == greedy[1]


@pytest.mark.model
def test_this_machine_can_be_a_stage_of_the_demo_model(nodes, model_path):
    arguments = ["--rpc", nodes, "--device", "RPC0,RPC1,CPU", "-ts", "1,1,1"]
    found = report(model_path, "-p", PROMPT, *arguments)
    assert layers(found) == {"RPC0": 11, "RPC1": 10, "CPU": 10}
    assert found["ids"] == library(model_path)[1]


@pytest.mark.parametrize(
    ("shares", "expected"),
    [("3,1,1", [3, 1, 1]), ("0.2,0.4,0.4", [1, 2, 2]), ("1,0,4", [1, 0, 4]), ("1", [5, 0, 0])],
)
def test_a_split_gives_each_device_its_share_of_the_layers(shares, expected, small, nodes, greedy):
    arguments = ["--rpc", nodes, "-p", PROMPT, "-ts", shares, "--json"]
    done = generate(small, *arguments, env={"RINGLINE_DEBUG": "1"})
    found = json.loads(done.out)
    assert found["ids"] == greedy[1]
    assert list(layers(found).values()) == expected
    # What libllama itself did, as it says in its log.
    placed = re.findall(r"layer +\d+ assigned to device (\w+)", done.err)
    assert [placed.count(f"RPC{number}") for number in range(3)] == expected


@pytest.mark.parametrize("offloaded", [0, 1, 3, 99])
def test_layers_that_are_not_offloaded_stay_here(offloaded, small, nodes, greedy):
    found = report(small, "--rpc", nodes, "-p", PROMPT, "-ngl", offloaded)
    assert sum(layers(found).values()) == min(offloaded, SPEC.layers + 1)
    assert found["ids"] == greedy[1]
    computed = {"GRAPH_COMPUTE", "GRAPH_RECOMPUTE"} & set(found["per_step"]["commands"])
    assert bool(computed) == (offloaded > 0)


@pytest.mark.parametrize("sizes", [(512, 512), (64, 64), (64, 16), (512, 1)])
def test_a_prompt_may_be_cut_into_batches_and_pieces(sizes, small, nodes):
    batch, ubatch = sizes
    arguments = ["-p", LONG_TEXT, "-c", 1024]
    found = report(small, "--rpc", nodes, *arguments, "-b", batch, "-ub", ubatch)
    assert found["prompt_tokens"] > 128
    assert found["ids"] == report(small, *arguments)["ids"]


def test_a_full_context_ends_the_text(small, nodes):
    found = report(small, "--rpc", nodes, "-p", PROMPT, "-c", 256, "-n", -1)
    assert found["stop_reason"] == "context full"
    assert found["prompt_tokens"] + len(found["ids"]) == 257


def test_no_tokens_are_no_text(small, nodes):
    assert generate(small, "--rpc", nodes, "-p", PROMPT, "-n", 0).out == "\n"


def test_a_seed_decides_the_text(small, nodes):
    def text(*arguments: object) -> str:
        return generate(small, "--rpc", nodes, "-p", PROMPT, "--temp", 1, *arguments).out

    first = text("--seed", 7)
    assert text("--seed", 7) == first
    assert text("--seed", 8) != first
    sampling = SamplingParams(temperature=1.0, seed=7)
    assert first == library(small, sampling=sampling)[0] + "\n"


def test_a_model_in_several_files_loads_by_its_first(tmp_path, greedy):
    first = make_model.make_model(tmp_path / "parts.gguf", ModelSpec(layers=4, split=3))
    assert len(list(tmp_path.iterdir())) == 3
    found = report(first, "--local-stages", 2, "-p", PROMPT)
    assert found["ids"] == greedy[1]
    assert len(found["stages"]) == 2
