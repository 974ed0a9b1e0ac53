"""Random arrivals, cancels and lengths over three nodes: every job ends, memory stays flat."""

from __future__ import annotations

import random
import resource
from contextlib import ExitStack
from pathlib import Path

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.engine.engine import Engine
from ringline.engine.generation import StopReason
from tests.rings import open_peers

N_STEPS = 3000
SECONDS = 120.0
#: what Python and libllama may keep in caches of their own.
SLACK_BYTES = 32 << 20


def resident() -> int:
    """Bytes of memory that this process has."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def play(engine, chance, n_steps, patience):
    """Keep the engine busy for so many steps; all jobs that ran, each with its outcome."""
    ended, running = [], []
    begin = sum(group.steps for group in engine.metrics().groups)
    while sum(group.steps for group in engine.metrics().groups) - begin < n_steps:
        while len(running) < 12:
            prompt = [5 + chance.randrange(40) for _ in range(chance.choice([1, 5, 30, 150]))]
            running.append(engine.submit(prompt, n_predict=chance.choice([0, 1, 8, 40, -1])))
        chance.shuffle(running)
        job = running.pop()
        if chance.random() < 0.3:
            job.cancel()
        ended.append((job, job.result(patience(SECONDS))))
    for job in running:
        job.cancel()
        ended.append((job, job.result(patience(SECONDS))))
    return ended


def test_random_jobs_over_three_nodes(tmp_path, patience):
    # Quantised: ggml multiplies f32 and f16 matrices in tiles, and the sums of a row are rounded
    # differently beside others. With 8 bits each row is computed as if it were alone.
    spec = ModelSpec(layers=6, type="q8_0")
    path = make_model.make_model(tmp_path / "model.gguf", spec)
    chance = random.Random(7)
    with ExitStack() as stack:
        endpoints = [peer.endpoint for peer in open_peers(stack, "rrr")]
        ring = stack.enter_context(Ring(endpoints))
        engine = stack.enter_context(Engine(ring, path, parallel=9, groups=3, n_ctx=9 * 256))
        ended = play(engine, chance, N_STEPS // 3, patience)
        before = resident()
        ended += play(engine, chance, N_STEPS, patience)
        assert resident() - before < SLACK_BYTES
        metrics = engine.metrics()
    assert sum(metrics.ended.values()) == metrics.submitted == len(ended)
    assert set(metrics.ended) == {"done", "cancelled"}
    assert [group.busy_slots for group in metrics.groups] == [0, 0, 0]
    full = [o for _, o in ended if o.stop_reason is StopReason.CONTEXT_FULL]
    assert all(outcome.n_prompt + len(outcome.ids) == 257 for outcome in full)
    # The same prompt gives the same text, whatever was beside it and whatever its cache held.
    texts = {}
    for job, outcome in ended:
        known = texts.setdefault(job.prompt, outcome.ids)
        alike = min(len(known), len(outcome.ids))
        assert known[:alike] == outcome.ids[:alike]
