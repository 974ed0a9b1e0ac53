"""Thousands of steps with random arrivals, cancels and lengths: nothing hangs, leaks or is lost.

The model is tiny: what is exercised are the ways of commands, hidden states and jobs. Memory after
a fifth of the steps is compared with that at the end. No time is judged; a run that makes no
progress for a long while has failed.
"""

from __future__ import annotations

import gc
import math
import os
import random
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.engine.engine import Engine
from ringline.engine.events import Failure, Outcome, Piece
from ringline.engine.generation import StopReason
from ringline.errors import RinglineError
from ringline.llama.sampler import SamplingParams
from tests.peers.process_tree import descendants, tree_memory
from tests.references import clear_ids
from tests.rings import open_peers

N_CTX = 128
#: ends a text, in the models of tools/make_model.py.
END = 2
#: tokens that a text may have at the most; references are as long.
LONGEST = 40
#: jobs at once: more than there are slots, so that some wait.
MOST_JOBS = 20
PARALLEL = 12
#: growth of a process that is no leak: the allocator's habits, tables that fill up.
SLACK = 8 * 2**20
#: seconds without a step after which it hangs.
STALL = 60.0


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("soak") / "soak.gguf", ModelSpec(layers=6))


@pytest.fixture(scope="module")
def references(model):
    """Prompts, and what each says alone on this CPU; some begin alike."""
    draw, found = random.Random(5), {}
    with (
        Ring() as ring,
        ring.place(model, n_threads=1, repack=False) as placed,
        Engine(ring, placed, parallel=1, n_ctx=N_CTX) as engine,
    ):
        for _ in range(200):
            start = max(found, default=())[: draw.choice([0, 0, 10])]
            rest = draw.choices(range(engine.model.n_vocab), k=draw.choice([1, 3, 20, 60]))
            ids = clear_ids(engine, [*start, *rest], LONGEST)
            if ids is not None:
                found[(*start, *rest)] = ids
            if len(found) == 16:
                return found
    raise AssertionError("too few prompts whose texts are beyond doubt")


@dataclass(eq=False)
class Record:
    """What one job has told so far. It is the job's sink: called in a thread of the engine."""

    prompt: tuple[int, ...]
    n_predict: int
    greedy: bool
    ids: list[int] = field(default_factory=list)
    ends: list[Outcome | Failure] = field(default_factory=list)
    late: int = 0
    cancelled: bool = False

    def take(self, event):
        self.late += bool(self.ends)
        if isinstance(event, Piece):
            self.ids.extend(event.ids)
        else:
            self.ends.append(event)

    def check(self, references):
        """It has ended: once, for a reason that fits, with the ids of its prompt."""
        assert (len(self.ends), self.late) == (1, 0)
        end = self.ends[0]
        assert isinstance(end, Outcome), end
        assert list(end.ids[: len(self.ids)]) == self.ids
        if end.stop_reason is StopReason.CANCELLED:
            assert self.cancelled
        else:
            assert (end.stop_reason, len(end.ids)) == (StopReason.LIMIT, self.n_predict)
        if self.greedy:
            assert list(end.ids) == references[self.prompt][: len(end.ids)]


class Soak:
    """Keeps an engine busy with random jobs."""

    def __init__(self, engine, references, seed):
        self.engine = engine
        self.running = {}
        self.n_submitted = 0
        self._references = references
        self._draw = random.Random(seed)

    @property
    def n_steps(self):
        return sum(group.steps for group in self.engine.metrics().groups)

    def run(self, n_steps, patience):
        """Submit, cancel and collect until so many steps have been taken in all."""
        done, moved = self.n_steps, time.monotonic()
        while done < n_steps:
            self._stir()
            time.sleep(0.002)
            now = self.n_steps
            if now > done:
                done, moved = now, time.monotonic()
            assert time.monotonic() - moved < patience(STALL), self._state()

    def drain(self, patience):
        """Let what is under way end."""
        deadline = time.monotonic() + patience(STALL)
        while self.running:
            self._collect()
            time.sleep(0.002)
            assert time.monotonic() < deadline, self._state()

    def submit(self):
        draw = self._draw
        prompt = draw.choice(list(self._references))
        record = Record(prompt, draw.randint(0, LONGEST), greedy=draw.random() < 0.7)
        bias = {} if record.greedy else {END: -math.inf}
        sampling = SamplingParams(
            temperature=0.0 if record.greedy else 0.9, seed=draw.randrange(1000), logit_bias=bias
        )
        job = self.engine.submit(
            prompt, n_predict=record.n_predict, sampling=sampling, sink=record.take
        )
        self.running[job] = record
        self.n_submitted += 1

    def _stir(self):
        """One moment: some arrive, now and then many at once; one may be cancelled."""
        self._collect()
        room = MOST_JOBS - len(self.running)
        for _ in range(min(room, self._draw.choice([0, 0, 1, 1, 2, 8]))):
            self.submit()
        if self.running and self._draw.random() < 0.1:
            job = self._draw.choice(list(self.running))
            self.running[job].cancelled = True
            job.cancel()

    def _collect(self):
        for job, record in list(self.running.items()):
            if job.state.ended and record.ends:
                record.check(self._references)
                del self.running[job]

    def _state(self):
        return f"no progress with {len(self.running)} jobs: {self.engine.metrics()}"


def own_memory():
    """What this process holds, without its children; bytes."""
    gc.collect()
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no Pss in smaps_rollup")


def holdings(peers):
    """Memory, and open files with threads, of this process and of each node with all below it."""
    pids = [peer.process.pid for peer in peers]
    memory = [own_memory(), *map(tree_memory, pids)]
    handles = [
        sum(len(os.listdir(f"/proc/{pid}/{kind}")) for pid in tree for kind in ("fd", "task"))
        for tree in [[os.getpid()], *map(descendants, pids)]
    ]
    return memory, handles


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("kinds", "groups", "n_steps"), [("rrr", 3, 10_000), ("rrrrr", 2, 1_000)])
def test_nothing_hangs_leaks_or_is_lost(kinds, groups, n_steps, model, references, patience):
    with ExitStack() as stack:
        peers = open_peers(stack, kinds)
        ring = stack.enter_context(Ring([peer.endpoint for peer in peers]))
        placed = ring.place(model, tensor_split=[1.0] * len(peers))
        engine = stack.enter_context(
            Engine(ring, placed, parallel=PARALLEL, groups=groups, n_ctx=PARALLEL * N_CTX)
        )
        soak = Soak(engine, references, seed=groups)
        soak.run(n_steps // 5, patience)
        memory, handles = holdings(peers)
        soak.run(n_steps, patience)
        memory_after, handles_after = holdings(peers)
        soak.drain(patience)
        metrics = engine.metrics()
    assert sum(metrics.ended.values()) == metrics.submitted == soak.n_submitted
    assert set(metrics.ended) == {"done", "cancelled"}
    print(memory, memory_after, handles)
    growth = [after - before for before, after in zip(memory, memory_after, strict=True)]
    assert max(growth) < SLACK, (memory, memory_after)
    assert handles_after == handles


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_node_killed_under_load_ends_every_job_with_its_name(victim, model, references, patience):
    with ExitStack() as stack:
        peers = open_peers(stack, "rrr")
        ring = stack.enter_context(Ring([peer.endpoint for peer in peers]))
        placed = ring.place(model, tensor_split=[1.0] * len(peers))
        engine = stack.enter_context(
            Engine(ring, placed, parallel=PARALLEL, groups=3, n_ctx=PARALLEL * N_CTX)
        )
        soak = Soak(engine, references, seed=victim)
        soak.run(100, patience)
        while len(soak.running) < MOST_JOBS:  # some of them wait for a slot
            soak.submit()
        records = list(soak.running.values())
        peers[victim].kill()
        deadline = time.monotonic() + patience(STALL)
        while not all(record.ends for record in records):
            assert time.monotonic() < deadline, engine.metrics()
            time.sleep(0.01)
        with pytest.raises(RinglineError, match=peers[victim].endpoint):
            soak.submit()
        failures = [r.ends[0] for r in records if isinstance(r.ends[0], Failure)]
        assert failures
        assert all(peers[victim].endpoint in str(failure.error) for failure in failures)
        assert [(len(record.ends), record.late) for record in records] == [(1, 0)] * len(records)
        assert sum(engine.metrics().ended.values()) == soak.n_submitted
