"""The examples are short, run as they stand, and print what they promise."""

from __future__ import annotations

import re
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from ringline import Ring
from tests.peers.dead_ends import refusing_endpoint
from tests.peers.processes import ROOT, environment, patience
from tests.rings import open_peers

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
MOST_LINES = 39


def run(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "examples" / name, *map(str, arguments)],
        env=environment({"RINGLINE_DEBUG": "0"}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(120),
        check=False,
    )


def local_text(model_path: Path, prompt: str, n_predict: int) -> str:
    with Ring() as ring, ring.load(model_path, n_threads=1) as model:
        return "".join(model.generate(prompt, n_predict=n_predict))


def test_there_are_three():
    assert len(EXAMPLES) == 3


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short_and_says_how_to_run_it(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MOST_LINES
    assert f"\nRun: python examples/{path.name} MODEL.gguf" in text


@pytest.mark.model
def test_a_local_ring_names_its_stages_and_writes_the_text(model_path):
    done = run("local_ring.py", model_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout == local_text(model_path, "Once upon a time", 48) + "\n"
    stages = re.findall(r"^(RPC\d) at 127\.0\.0\.1:\d+: (\d+) layers$", done.stderr, re.MULTILINE)
    assert [name for name, _ in stages] == ["RPC0", "RPC1", "RPC2"]
    assert sum(int(n_layers) for _, n_layers in stages) == 31


@pytest.mark.model
@pytest.mark.parametrize("kinds", ["rr", "rs"])
def test_a_remote_ring_writes_the_text(kinds, model_path):
    with ExitStack() as stack:
        endpoints = [peer.endpoint for peer in open_peers(stack, kinds)]
        done = run("remote_ring.py", model_path, *endpoints)
    assert done.returncode == 0, done.stderr
    assert done.stdout == local_text(model_path, "The capital of France is", 32) + "\n"


@pytest.mark.model
def test_a_remote_ring_that_fails_is_told_in_one_sentence(model_path):
    with refusing_endpoint() as endpoint:
        done = run("remote_ring.py", model_path, endpoint)
    assert (done.returncode, done.stdout) == (1, "")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"the ring failed: node {endpoint}: ")


@pytest.mark.model
def test_the_traffic_of_both_paths_is_shown_with_the_same_text(model_path):
    done = run("traffic.py", model_path)
    assert done.returncode == 0, done.stderr
    shown = re.findall(
        r"^ *(\w+): +([\d,]+) bytes out, +([\d,]+) bytes in\n +({.*})\n +(.*)$",
        done.stdout,
        re.MULTILINE,
    )
    (hub, direct, thin) = shown
    assert (hub[0], direct[0], thin[0]) == ("hub", "direct", "thin")
    for better, worse in [(direct, hub), (thin, direct)]:
        for less, more in zip(better[1:3], worse[1:3], strict=True):
            assert int(less.replace(",", "")) < int(more.replace(",", ""))
    assert "'GET_TENSOR': 3.0" in hub[3]
    assert "'COPY_TENSOR_TO': 2.0" in direct[3]
    assert "'SAMPLE': 1.0" in thin[3]
    assert hub[4] == direct[4] == thin[4] == repr(local_text(model_path, "Water boils because", 24))
