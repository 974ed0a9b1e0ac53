"""Many streams over a ring: the ids of a lone local run, whatever the groups, stages and paths."""

from __future__ import annotations

import logging
import os
import signal
import time
from contextlib import ExitStack, contextmanager

import pytest

from ringline import Ring
from ringline.client.edge import Path
from ringline.engine.engine import Engine
from ringline.errors import RinglineError
from tests.peers.process_tree import children
from tests.rings import open_peers

pytestmark = pytest.mark.model

THINGS = ["river", "lighthouse", "violin", "harbour", "winter", "garden", "train", "clock"]
THINGS += ["island", "kitchen", "mountain", "letter", "bridge", "market", "forest", "mirror"]
#: of different lengths, and alike at their beginnings: caches are shared and cut.
PROMPTS = [
    f"Once upon a time there was a {thing}. " + "It stood there for many years. " * (number % 4)
    for number, thing in enumerate(THINGS)
]
N_PREDICT = 16
SECONDS = 120.0


@pytest.fixture(scope="module")
def alone(model_path):
    """Ids of each prompt by itself on this CPU."""
    found = []
    with Ring() as ring, ring.load(model_path, n_threads=1, repack=False, n_ctx=512) as loaded:
        for prompt in PROMPTS:
            run = loaded.generate(prompt, n_predict=N_PREDICT)
            list(run)
            found.append(run.ids)
    return found


@pytest.fixture(scope="module")
def endpoints():
    with ExitStack() as stack:
        ringline, stock = open_peers(stack, "rrr"), open_peers(stack, "ss")
        yield {"r": [p.endpoint for p in ringline], "s": [p.endpoint for p in stock]}


def run_staggered(engine, patience):
    """Submit all prompts one after another, while the first ones run; the ids of each."""
    jobs = []
    for prompt in PROMPTS:
        jobs.append(engine.submit(prompt, n_predict=N_PREDICT))
        time.sleep(0.02)
    return [list(job.result(patience(SECONDS)).ids) for job in jobs]


@pytest.mark.parametrize("groups", [1, 2])
def test_on_this_cpu(groups, model_path, alone, patience):
    with Ring() as ring:
        placed = ring.place(model_path, n_threads=1, repack=False)
        with Engine(ring, placed, parallel=8, groups=groups, n_ctx=2048) as engine:
            assert run_staggered(engine, patience) == alone
            # Again, over caches that hold what came before.
            assert run_staggered(engine, patience) == alone
            assert engine.metrics().reused_tokens > 0


@pytest.mark.parametrize(
    ("kinds", "groups", "path"),
    [
        ("rr", 1, None),
        ("rr", 2, None),
        ("rr", 3, None),
        ("rr", 2, Path.DIRECT),
        ("rr", 2, Path.HUB),
        ("rrr", 3, None),
        ("ss", 2, None),
        ("rsr", 2, None),
    ],
)
def test_over_a_ring(kinds, groups, path, model_path, endpoints, alone, patience):
    left = {kind: iter(found) for kind, found in endpoints.items()}
    with Ring([next(left[kind]) for kind in kinds], path=path) as ring:
        placed = ring.place(model_path, n_threads=1, repack=False)
        with Engine(ring, placed, parallel=16, groups=groups, n_ctx=4096) as engine:
            assert run_staggered(engine, patience) == alone
            metrics = engine.metrics()
    assert metrics.ended == {"done": len(PROMPTS)}
    assert len(metrics.groups) == groups
    assert all(group.steps for group in metrics.groups)


def test_two_stages_get_two_groups_and_the_balanced_split(model_path, endpoints):
    with Ring(endpoints["r"][:2]) as ring:
        placed = ring.place(model_path, n_threads=1)
        with Engine(ring, placed, parallel=4, n_ctx=1024) as engine:
            assert [stage.n_layers for stage in engine.stages] == [18, 13]
            assert engine.capacity.describe() == (
                "4 requests at once in 2 groups, 256 tokens of context each; "
                "their KV cache takes 23.6 MB"
            )


def test_a_node_that_dies_under_load_ends_every_job_with_its_name(model_path, patience):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        ring = stack.enter_context(Ring([peer.endpoint for peer in peers]))
        engine = stack.enter_context(Engine(ring, model_path, parallel=4, groups=2, n_ctx=1024))
        jobs = [engine.submit(prompt) for prompt in PROMPTS]
        next(iter(jobs[0]))
        peers[1].kill()
        errors = []
        for job in jobs:
            with pytest.raises(RinglineError) as caught:
                job.result(patience(SECONDS))
            errors.append(str(caught.value))
        assert all(peers[1].endpoint in error for error in errors), errors
        assert engine.metrics().ended == {"failed": len(PROMPTS)}


def test_the_log_names_the_node_that_a_long_step_waits_for(model_path, patience, caplog):
    caplog.set_level(logging.WARNING, "ringline.engine.watchdog")
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        ring = stack.enter_context(Ring([peer.endpoint for peer in peers]))
        options = {"parallel": 1, "n_ctx": 512, "step_deadline": 0.2}
        engine = stack.enter_context(Engine(ring, model_path, **options))
        job = engine.submit(PROMPTS[0], n_predict=400)
        next(iter(job))
        with all_stopped(children(peers[1].process.pid)):
            deadline = time.monotonic() + patience(SECONDS)
            while f"waiting for node {peers[1].endpoint} (" not in caplog.text:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        job.cancel()
        job.result(patience(SECONDS))


@contextmanager
def all_stopped(pids):
    """Processes that do nothing while the block runs."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
