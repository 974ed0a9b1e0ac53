"""A thin coordinator says what a fat one says: every part of level 5, on and off.

The reference is this machine's CPU with the same batches, to the last bit: tokens of greedy and of
seeded samplers, and logprobs.
"""

from __future__ import annotations

import itertools
from contextlib import ExitStack

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.client.counters import Traffic
from ringline.client.thin import Parts
from ringline.engine.ring_context import RingContext
from ringline.llama.batch import Batch
from ringline.llama.choice import Wanted
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams
from tests.peers.processes import ringline_node, stock_server
from tests.thin_rows import N_CTX, Rows, Told

SPECS = {
    "llama": ModelSpec(layers=4, type="q8_0"),
    "llama tied": ModelSpec(layers=4, type="q4_0", tied=True),
    "qwen2": ModelSpec(arch="qwen2", layers=4, type="q8_0"),
    "qwen3": ModelSpec(arch="qwen3", layers=4, type="q8_0", tied=True),
    "gemma3": ModelSpec(arch="gemma3", layers=4, type="q8_0"),
    "experts": ModelSpec(layers=4, type="q8_0", experts=4),
}
COMBINATIONS = [Parts(*switches) for switches in itertools.product([False, True], repeat=3)]
N_STEPS = 5


@pytest.fixture(scope="module")
def nodes():
    with ExitStack() as stack:
        yield [stack.enter_context(ringline_node("--threads=1")).endpoint for _ in range(2)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        name: make_model.make_model(folder / f"{name}.gguf", spec) for name, spec in SPECS.items()
    }


@pytest.fixture(scope="module")
def said_here(models):
    """What rows of a model say on this CPU; decoded once."""
    known: dict[tuple[str, int], list[list[Told]]] = {}

    def say(name: str, n_rows: int) -> list[list[Told]]:
        if (name, n_rows) not in known:
            with (
                Model.load(models[name], repack=False) as model,
                Context(model, **sizes(n_rows), n_threads=1) as context,
            ):
                known[name, n_rows] = Rows(context, n_rows).run(N_STEPS)
        return known[name, n_rows]

    return say


def sizes(n_rows: int) -> dict[str, int]:
    return {"n_ctx": n_rows * N_CTX, "n_batch": 512, "n_ubatch": 64, "n_seq_max": n_rows}


def say_there(endpoints, path, n_rows: int, parts: Parts) -> tuple[list[list[Told]], Traffic]:
    """What the rows say over a ring, and the traffic of all of it, the load included."""
    with (
        Ring(endpoints, parts=parts) as ring,
        ring.place(path, devices=ring.devices, tensor_split=[3, 2], repack=False) as placed,
        RingContext(placed.model, placed.remote, **sizes(n_rows), n_threads=1) as context,
    ):
        said = Rows(context, n_rows).run(N_STEPS)
        return said, Traffic.total(placed.remote.counters.nodes.values())


def check_parts(commands: dict[str, int], parts: Parts) -> None:
    """The parts that are on were used, and no others."""
    assert ("STEP" in commands) == parts.codec
    assert ("SET_ROWS" in commands) == parts.rows
    assert ("SAMPLE" in commands) == parts.sampling
    assert ("GET_TENSOR" in commands) != parts.sampling


@pytest.mark.parametrize("n_rows", [1, 8, 32])
@pytest.mark.parametrize("parts", COMBINATIONS, ids=str)
def test_every_combination_of_parts_says_the_same(nodes, models, said_here, parts, n_rows):
    said, traffic = say_there(nodes, models["llama"], n_rows, parts)
    assert said == said_here("llama", n_rows)
    check_parts(traffic.commands, parts)


@pytest.mark.parametrize("parts", [Parts.none(), Parts.all()], ids=str)
@pytest.mark.parametrize("name", [name for name in SPECS if name != "llama"])
def test_other_models_say_the_same(nodes, models, said_here, name, parts):
    said, traffic = say_there(nodes, models[name], 8, parts)
    assert said == said_here(name, 8)
    check_parts(traffic.commands, parts)


def test_a_node_without_level_5_in_the_ring_takes_the_older_way(nodes, models, said_here):
    with stock_server(1) as (stock,):
        said, traffic = say_there([nodes[0], stock.endpoint], models["llama"], 8, Parts.all())
        assert said == said_here("llama", 8)
        assert "SET_ROWS" in traffic.commands
        assert "SAMPLE" not in traffic.commands
        said, traffic = say_there([stock.endpoint, nodes[0]], models["llama"], 8, Parts.all())
        assert said == said_here("llama", 8)
        assert "SET_ROWS" not in traffic.commands
        assert "SAMPLE" in traffic.commands


@pytest.mark.parametrize("count", [1, 2])
def test_a_prompt_of_many_pieces_says_the_same(nodes, models, count):
    """50 pieces, whose results nobody waits for in between."""
    batch = Batch(400)
    batch.add_run([300 + place % 100 for place in range(400)], 0, logits_last=True)
    few = {"n_ctx": 512, "n_batch": 512, "n_ubatch": 8, "n_seq_max": 1, "n_threads": 1}
    told = []
    with Ring(nodes[:count]) as ring, Ring() as here:
        for one in (here, ring):
            with (
                one.place(models["llama"], devices=one.devices, repack=False) as placed,
                RingContext(placed.model, placed.remote, **few) as context,
                Sampler(placed.model, SamplingParams(temperature=0.0)) as sampler,
            ):
                told.append(context.step(batch, [Wanted(-1, sampler, 5)])[0])
    assert told[0].token == told[1].token
    assert told[0].logprobs.logprobs.tolist() == told[1].logprobs.logprobs.tolist()


def test_a_model_that_takes_the_place_of_another_brings_its_own_table(nodes, tmp_path):
    """Its embedding table may lie where that of the closed model lay, with the same shape."""
    specs = [ModelSpec(layers=2, type="q8_0", seed=seed) for seed in (1, 2, 3)]
    paths = [make_model.make_model(tmp_path / f"{spec.seed}.gguf", spec) for spec in specs]
    with Ring(nodes, parts=Parts.all()) as ring:
        for path in paths:
            with (
                Model.load(path, repack=False) as model,
                Context(model, **sizes(2), n_threads=1) as context,
            ):
                expected = Rows(context, 2).run(2)
            with (
                ring.place(path, devices=ring.devices, tensor_split=[2, 1], repack=False) as placed,
                RingContext(placed.model, placed.remote, **sizes(2), n_threads=1) as context,
            ):
                assert Rows(context, 2).run(2) == expected
        assert Traffic.total(ring.remote.counters.nodes.values()).commands["SET_ROWS"] > 0
