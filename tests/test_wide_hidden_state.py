"""Models of other shapes than the demo's: the same ids over a ring as on this machine alone."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

import make_model
from make_model import ARCHITECTURES, ModelSpec
from ringline import Ring
from ringline.client import edge
from ringline.client.counters import Traffic
from ringline.llama.model import Model
from tests.peers.processes import Peer
from tests.peers.workloads import LONG_TEXT, PROMPTS
from tests.rings import open_peers

#: a step of 512 tokens, of 4096 numbers of four bytes each: 8 MiB, more than a socket buffer holds.
N_TOKENS, WIDTH = 512, 4096
HIDDEN_STATE = 4 * N_TOKENS * WIDTH
#: four layers with the output layer; its hidden state is that of the tokens that ask for logits.
WIDE = ModelSpec(layers=3, embd=WIDTH, heads=32, kv_heads=1, ff=32, vocab=512, type="q8_0")
SHARES = (1, 1, 2)
N_PREDICT = 12

SHAPES = {
    **{arch: ModelSpec(arch=arch) for arch in ARCHITECTURES},
    "tied": ModelSpec(tied=True),
    "experts": ModelSpec(experts=4),
    "many heads of the cache": ModelSpec(kv_heads=4),
    "a vocabulary wider than a page": ModelSpec(vocab=20_000),
    "rows that are no multiple of 512": ModelSpec(
        type="q8_0", embd=160, ff=96, heads=5, kv_heads=1
    ),
    "q4_0 experts": ModelSpec(type="q4_0", experts=4, embd=128, ff=256),
    "f16": ModelSpec(type="f16"),
}


@dataclass(frozen=True)
class Result:
    ids: list[list[int]]
    traffic: Traffic


def run(
    model: Path,
    nodes: Sequence[Peer] = (),
    *,
    path: edge.Path | None = None,
    shares: Sequence[float] = (),
    n_tokens: int = 128,
    n_prompt: int = 300,
) -> Result:
    """Greedy ids after about `n_prompt` tokens in steps of `n_tokens`, and after short prompts."""
    with (
        Ring([node.endpoint for node in nodes], path=path) as ring,
        ring.load(
            model,
            tensor_split=shares,
            n_ctx=1024,
            n_batch=n_tokens,
            n_ubatch=n_tokens,
            n_threads=1,
            repack=False,
        ) as loaded,
    ):
        before = Traffic.total(ring.remote.counters.snapshot().values())
        texts = (long_text(loaded.model, n_prompt), *PROMPTS[:3])
        runs = [loaded.generate(text, n_predict=N_PREDICT) for text in texts]
        ids = [run.ids for run in runs if "".join(run)]
        assert n_tokens < len(runs[0].prompt) < n_prompt + n_tokens
        after = Traffic.total(ring.remote.counters.snapshot().values())
        return Result(ids, after.since(before))


def long_text(model: Model, n_tokens: int) -> str:
    text = 4 * LONG_TEXT
    return text[: len(text) * n_tokens // len(model.tokenize(text))]


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        yield open_peers(stack, "rrr")


def wide_model(folder: Path, *, tied: bool) -> Path:
    return make_model.make_model(folder / "wide.gguf", replace(WIDE, tied=tied))


def run_wide(model: Path, nodes: Sequence[Peer] = (), path: edge.Path | None = None) -> Result:
    shares = SHARES if nodes else ()
    return run(model, nodes, path=path, shares=shares, n_tokens=N_TOKENS, n_prompt=N_TOKENS + 16)


def test_a_hidden_state_larger_than_a_sockets_buffers_arrives_on_every_path(nodes, tmp_path):
    model = wide_model(tmp_path, tied=False)
    expected = run_wide(model).ids
    for path in (edge.Path.HUB, edge.Path.DIRECT, None):
        result = run_wide(model, nodes, path)
        assert result.ids == expected, path
        through_us = 2 * HIDDEN_STATE if path is edge.Path.HUB else 0
        assert through_us <= result.traffic.bytes_in < through_us + HIDDEN_STATE


def test_it_arrives_at_an_output_layer_that_is_the_embedding(nodes, tmp_path):
    model = wide_model(tmp_path, tied=True)
    assert run_wide(model, nodes).ids == run_wide(model).ids


@pytest.mark.parametrize("spec", SHAPES.values(), ids=SHAPES.keys())
def test_a_model_of_another_shape_gives_the_same_ids(spec, nodes, tmp_path):
    model = make_model.make_model(tmp_path / "model.gguf", spec)
    expected = run(model).ids
    assert len(set().union(*expected)) > 8
    for path in (edge.Path.HUB, None):
        assert run(model, nodes[:2], path=path, shares=(1, 1)).ids == expected
