"""`ringline generate` with many prompts: each with its number when it is finished, or a list."""

from __future__ import annotations

import json
import re
from contextlib import ExitStack

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from tests.commands import ringline
from tests.rings import open_peers

PROMPTS = ["Once upon a time", "The sky is", "One, two, three,"]
N_PREDICT = 12
#: quantised, so that a row is computed as if it were alone (see test_engine_soak).
SPEC = ModelSpec(layers=4, type="q8_0")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        yield ",".join(peer.endpoint for peer in open_peers(stack, "rr"))


@pytest.fixture(scope="module")
def alone(small):
    """What a program gets for each prompt by itself: text and ids."""
    found = []
    with Ring() as ring, ring.load(small, n_threads=1) as loaded:
        for prompt in PROMPTS:
            run = loaded.generate(prompt, n_predict=N_PREDICT)
            found.append(("".join(run), run.ids))
    return found


def generate(model, *arguments, prompts=PROMPTS, env=None):
    flags = [word for prompt in prompts for word in ("-p", prompt)]
    fixed = ("-n", N_PREDICT, "--temp", 0, "-t", 1, "-c", 1024)
    done = ringline("generate", "-m", model, *fixed, *flags, *arguments, env=env)
    assert done.code == 0, done.err
    return done


def numbered(texts):
    return sorted(f"[{number}] {text}\n" for number, text in enumerate(texts, start=1))


def test_each_text_stands_behind_the_number_of_its_prompt(small, nodes, alone):
    done = generate(small, "--rpc", nodes)
    texts = re.split(r"(?m)^(?=\[\d\] )", done.out)[1:]
    assert sorted(texts) == numbered([text for text, _ in alone])
    stages, capacity, speed = done.err.splitlines()
    assert stages.endswith("layers (nodes in the order given)")
    assert capacity.startswith("3 requests at once in 2 groups, 512 tokens of context each; ")
    assert speed.startswith("3 prompts, ")
    assert f"generated {3 * N_PREDICT} tokens" in speed


def test_json_is_one_list_in_the_order_of_the_prompts(small, nodes, alone):
    found = json.loads(generate(small, "--rpc", nodes, "--json", "--parallel", 2).out)
    assert [entry["prompt"] for entry in found] == [1, 2, 3]
    assert [(entry["text"], entry["ids"]) for entry in found] == alone
    assert {entry["stop_reason"] for entry in found} == {"token limit"}
    assert all(entry["first_token_seconds"] > 0 for entry in found)


@pytest.mark.parametrize(("groups", "said"), [(1, "at once, "), (3, "at once in 3 groups, ")])
def test_the_number_of_groups_can_be_chosen(groups, said, small, nodes, alone):
    done = generate(small, "--rpc", nodes, "--groups", groups, "--json")
    assert said in done.err
    assert [entry["ids"] for entry in json.loads(done.out)] == [ids for _, ids in alone]


def test_a_file_has_a_prompt_a_line_when_several_may_run(small, alone, tmp_path):
    file = tmp_path / "prompts.txt"
    file.write_text("\n\n".join(PROMPTS) + "\n", encoding="utf-8")
    found = json.loads(generate(small, "-f", file, "--parallel", 8, "--json", prompts=()).out)
    assert [entry["ids"] for entry in found] == [ids for _, ids in alone]
    whole = json.loads(generate(small, "-f", file, "--json", prompts=()).out)
    assert whole["prompt_tokens"] > sum(entry["prompt_tokens"] for entry in found) - len(PROMPTS)


def test_one_prompt_streams_whatever_may_run_at_once(small, alone):
    done = generate(small, "--parallel", 4, prompts=PROMPTS[:1])
    assert done.out == alone[0][0] + "\n"


def test_statistics_are_shown_for_all_of_them(small, nodes):
    done = generate(small, "--rpc", nodes, "--stats")
    assert re.search(r"\d+ decode steps", done.err)
    assert "bytes out" in done.err


def test_the_default_split_is_what_libllama_places(small, nodes):
    done = generate(small, "--rpc", nodes, env={"RINGLINE_DEBUG": "1"})
    counts = [int(count) for count in re.findall(r"RPC\d \([^)]*\) (\d+) layers", done.err)]
    placed = re.findall(r"layer +\d+ assigned to device (\w+)", done.err)
    assert [placed.count(f"RPC{number}") for number in range(2)] == counts
    assert sum(counts) == SPEC.layers + 1


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["-p", "Go", "-p", "word " * 2000, "-c", 256], "prompt 2: the prompt has "),
        (["-p", "Go", "-p", "On", "--groups", 3], "2 requests at once in 3 groups"),
    ],
)
def test_what_cannot_be_done_is_told(arguments, reason, small):
    done = ringline("generate", "-m", small, "-n", 4, *arguments)
    assert done.code == 1
    assert done.error.startswith(reason)


def test_a_file_without_a_prompt_is_told(small, tmp_path):
    file = tmp_path / "empty.txt"
    file.write_text("\n \n", encoding="utf-8")
    done = ringline("generate", "-m", small, "-f", file, "--parallel", 2)
    assert done.error == f"the prompt file {file} has no line with a prompt in it"
