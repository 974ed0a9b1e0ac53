"""A step that fails on its way is decoded again, and no sampler has moved twice because of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack

import pytest

import make_model
from make_model import ModelSpec
from ringline.client import edge
from ringline.client.counters import Traffic
from ringline.engine.ring_context import RingContext
from ringline.llama.batch import Batch
from ringline.llama.choice import Wanted
from ringline.llama.sampler import Sampler, SamplingParams
from tests.peers.forwarder import forwarder
from tests.rings import open_peers, placed
from tests.test_rendezvous_failures import close_way

N_ROWS, N_STEPS = 4, 12
#: each has a state: the random numbers, what was seen, the grammar.
SAMPLING = (
    SamplingParams(temperature=1.0, seed=3),
    SamplingParams(temperature=0.9, seed=4, repeat_penalty=1.5),
    SamplingParams(temperature=1.0, seed=5, grammar='root ::= ("a" | "b" | "c")+'),
    SamplingParams(temperature=1.0, seed=6, mirostat=2),
)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    spec = ModelSpec(layers=4, type="q8_0")
    return make_model.make_model(tmp_path_factory.mktemp("model") / "tiny.gguf", spec)


def say(context: RingContext, before: Callable[[int], object] = lambda step: None) -> list[int]:
    """Tokens of some rows, step by step; `before` is called before each step."""
    batch, said = Batch(context.n_batch), []
    samplers = [Sampler(context.model, params) for params in SAMPLING]
    last = [300 + row for row in range(N_ROWS)]
    for row in range(N_ROWS):
        context.seq_rm(row)
    for step in range(N_STEPS):
        before(step)
        batch.clear()
        wanted = [
            Wanted(batch.add(token, step, (row,), logits=True), samplers[row])
            for row, token in enumerate(last)
        ]
        last = [choice.checked() for choice in context.step(batch, wanted)]
        said += last
    for sampler in samplers:
        sampler.close()
    return said


def test_an_edge_that_breaks_moves_no_sampler_twice(model, monkeypatch):
    monkeypatch.setattr(edge, "_FIRST_PAUSE", 3600.0)
    monkeypatch.setattr(edge, "_LONGEST_PAUSE", 3600.0)
    with ExitStack() as stack:
        source, target = open_peers(stack, "rr")
        proxy = stack.enter_context(forwarder(target.endpoint))
        ring = stack.enter_context(placed(model, [source.endpoint, proxy.endpoint]))
        context = stack.enter_context(
            ring.context(n_ctx=1024, n_batch=64, n_ubatch=64, n_seq_max=N_ROWS)
        )
        undisturbed = say(context)
        assert say(context, lambda step: step == 5 and close_way(proxy)) == undisturbed
        traffic = Traffic.total(ring.remote.counters.nodes.values())
        assert traffic.paths["hub"] == N_STEPS - 5
        assert traffic.commands["STEP"] > 0
        # The failed step's SAMPLE was not done; rows that it had kept were forgotten by another.
        assert traffic.commands["SAMPLE"] == 2 * N_STEPS + 2


def test_a_context_that_comes_later_has_samplers_of_its_own(model):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        ring = stack.enter_context(placed(model, [peer.endpoint for peer in peers]))
        said = []
        for _ in range(2):
            with ring.context(n_ctx=1024, n_batch=64, n_ubatch=64, n_seq_max=N_ROWS) as context:
                said.append(say(context))
        assert said[0] == said[1]
