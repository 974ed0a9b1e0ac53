"""32 streams at once over a ring: each says what its prompt says alone on this CPU.

Prompts of any length arrive while others are decoded, end at other times, and some begin alike. A
step has room for few tokens beside those of 32 streams, so prompts come in small chunks.

The reference decodes one row at a time, the ring up to 32: tests/references.py says what that means
to the last bit.
"""

from __future__ import annotations

import random
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path as FilePath

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.client.counters import Traffic
from ringline.client.edge import Path
from ringline.engine.engine import Engine
from tests.references import clear_ids
from tests.rings import open_peers

N_STREAMS = 32
#: of one stream: a prompt and its text.
N_CTX = 256
#: 32 of them go to the streams that are decoding, if all are.
BUDGET = 48
SECONDS = 120.0


@dataclass(frozen=True)
class Ask:
    """What one stream asks, and the ids that this gives alone."""

    prompt: tuple[int, ...]
    ids: list[int]


@dataclass(frozen=True)
class Case:
    """A model and 32 requests."""

    model: FilePath
    asks: list[Ask]


def make_case(model: FilePath, *, longest_prompt: int, longest_text: int) -> Case:
    """Draw 32 requests and run them one by one on this CPU."""
    draw = random.Random(3)
    asks: list[Ask] = []
    with (
        Ring() as ring,
        ring.place(model, n_threads=1, repack=False) as placed,
        Engine(ring, placed, parallel=1, n_ctx=N_CTX) as engine,
    ):
        tokens = range(300, engine.model.n_vocab)
        for _ in range(20 * N_STREAMS):
            prompt = draw.choices(tokens, k=draw.randint(1, longest_prompt))
            if len(asks) % 3 == 2:  # begins as the one before it
                prompt = [*asks[-1].prompt[:-1], *prompt][:longest_prompt]
            ids = clear_ids(engine, prompt, draw.randint(2, longest_text))
            if ids is not None:
                asks.append(Ask(tuple(prompt), ids))
            if len(asks) == N_STREAMS:
                return Case(model, asks)
    raise AssertionError("too few prompts whose texts are beyond doubt")


@pytest.fixture(scope="module")
def tiny_case(tmp_path_factory):
    """A random model of some MB: fast, and its texts do not end by themselves."""
    spec = ModelSpec(layers=6, embd=128, ff=256, type="q8_0")
    model = make_model.make_model(tmp_path_factory.mktemp("tiny") / "tiny.gguf", spec)
    return make_case(model, longest_prompt=50, longest_text=24)


@pytest.fixture(scope="module")
def real_case(model_path):
    return make_case(model_path, longest_prompt=20, longest_text=8)


@pytest.fixture(scope="module")
def endpoints():
    with ExitStack() as stack:
        peers = {"r": open_peers(stack, "rrr"), "s": open_peers(stack, "sss")}
        yield {kind: [peer.endpoint for peer in found] for kind, found in peers.items()}


def assert_same_ids(case, nodes, groups, path, patience, expected=None):
    """Let all requests arrive one after another; the first ones are decoded meanwhile.

    `expected` are the paths that hidden states take, if there are others than `path`.
    """
    delays = random.Random(groups)
    with (
        Ring(nodes, path=path) as ring,
        ring.place(case.model, n_threads=1, tensor_split=[1.0] * len(nodes)) as placed,
        Engine(
            ring,
            placed,
            parallel=N_STREAMS,
            groups=groups,
            n_ctx=N_STREAMS * N_CTX,
            n_ubatch=BUDGET,
        ) as engine,
    ):
        jobs = []
        for ask in case.asks:
            jobs.append(engine.submit(ask.prompt, n_predict=len(ask.ids)))
            time.sleep(delays.uniform(0, 0.005))
        found = [list(job.result(patience(SECONDS)).ids) for job in jobs]
        assert found == [ask.ids for ask in case.asks]
        metrics = engine.metrics()
        paths = Traffic.total(ring.remote.counters.snapshot().values()).paths
    assert metrics.ended == {"done": N_STREAMS}
    assert len(metrics.groups) == groups
    assert all(group.steps for group in metrics.groups)
    assert set(paths) == (expected or {path})


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("path", [Path.HUB, Path.DIRECT, Path.RENDEZVOUS])
def test_over_ringline_nodes(path, stages, groups, tiny_case, endpoints, patience):
    assert_same_ids(tiny_case, endpoints["r"][:stages], groups, path, patience)


@pytest.mark.parametrize("groups", [1, 2, 3])
@pytest.mark.parametrize("stages", [2, 3])
def test_over_stock_servers(stages, groups, tiny_case, endpoints, patience):
    assert_same_ids(tiny_case, endpoints["s"][:stages], groups, Path.HUB, patience)


def test_over_both_kinds(tiny_case, endpoints, patience):
    """Two nodes that reach each other, then a stock server that reaches nobody."""
    nodes = [*endpoints["r"][:2], endpoints["s"][0]]
    paths = {Path.RENDEZVOUS, Path.HUB}
    assert_same_ids(tiny_case, nodes, 2, Path.RENDEZVOUS, patience, expected=paths)


@pytest.mark.model
@pytest.mark.parametrize(
    ("kind", "stages", "groups", "path"),
    [
        ("r", 2, 2, Path.RENDEZVOUS),
        ("r", 3, 3, Path.DIRECT),
        ("s", 2, 2, Path.HUB),
    ],
)
def test_the_real_model(kind, stages, groups, path, real_case, endpoints, patience):
    assert_same_ids(real_case, endpoints[kind][:stages], groups, path, patience)
