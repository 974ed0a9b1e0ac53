"""What an engine says of its ring: stages, edges, slots, caches and errors, over real nodes."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.client import observer
from ringline.client.edge import Path
from ringline.engine.engine import Engine
from ringline.engine.metrics import TTFT_BOUNDS, EngineMetrics, GroupMetrics, Histogram, Meter
from ringline.engine.ring_metrics import COORDINATOR
from ringline.errors import NetworkError, RefusedError, RinglineError
from ringline.wire.commands import Command
from tests.rings import open_peers

SPEC = ModelSpec(layers=4, type="q8_0")
N_PREDICT = 12
PROMPT = [5, 6, 7, 8, 9]
SECONDS = 60.0


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def endpoints():
    with ExitStack() as stack:
        ringline, stock = open_peers(stack, "rr"), open_peers(stack, "s")
        yield {"r": [p.endpoint for p in ringline], "s": [p.endpoint for p in stock]}


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nodes are asked often, so that a test need not wait for a second."""
    monkeypatch.setattr(observer, "_INTERVAL", 0.02)


@dataclass
class Opened:
    """An engine over a ring, which counts what its connections for metrics carry."""

    ring: Ring
    engine: Engine

    def until(self, condition, patience):
        """The metrics, as soon as they are so."""
        deadline = time.monotonic() + patience(SECONDS)
        while not condition(metrics := self.engine.metrics()):
            assert time.monotonic() < deadline, metrics
            time.sleep(0.01)
        return metrics


@pytest.fixture
def open_engine(small):
    with ExitStack() as stack:

        def opened(nodes, *, path=None, **options):
            ring = stack.enter_context(Ring(nodes, path=path))
            placed = ring.place(small, n_threads=1, repack=False)
            options = {"parallel": 2, "n_ctx": 512, **options}
            return Opened(ring, stack.enter_context(Engine(ring, placed, **options)))

        yield opened


def run(engine, n=1):
    """Jobs one after another; tokens that were decoded."""
    for _ in range(n):
        engine.submit(PROMPT, n_predict=N_PREDICT).result(SECONDS)
    metrics = engine.metrics()
    return metrics.prompt_tokens + metrics.generated_tokens - n


def between(metrics):
    return [edge for edge in metrics.edges if COORDINATOR not in (edge.source, edge.target)]


def test_every_stage_says_that_it_computed_and_how_long(open_engine, endpoints, patience):
    opened = open_engine(endpoints["r"])
    run(opened.engine)
    steps = sum(group.steps for group in opened.engine.metrics().groups)
    metrics = opened.until(
        lambda found: all(stage.computations >= steps for stage in found.stages), patience
    )
    first, second = metrics.stages
    assert [first.node, second.node] == endpoints["r"]
    assert first.busy_seconds > 0 < second.busy_seconds
    assert second.wait_seconds > 0 == first.wait_seconds
    assert {first.state, second.state} == {"ok"}
    assert min(first.lock_wait_seconds, second.lock_wait_seconds) > 0


def test_stages_say_which_layers_they_have_and_what_these_weigh(open_engine, endpoints, small):
    first, second = open_engine(endpoints["r"]).engine.metrics().stages
    assert (first.first_layer, first.has_output) == (0, False)
    assert (second.first_layer, second.has_output) == (first.n_layers, True)
    assert first.n_layers + second.n_layers == SPEC.layers
    assert 0 < first.weight_bytes + second.weight_bytes < small.stat().st_size + (1 << 20)
    per_layer = 2 * SPEC.kv_heads * (SPEC.embd // SPEC.heads) * 2 * 512
    assert first.kv_bytes == first.n_layers * per_layer
    assert first.memory_total >= first.memory_free > 0


@pytest.mark.parametrize("path", [Path.RENDEZVOUS, Path.DIRECT, Path.HUB])
def test_an_edge_counts_the_hidden_states_of_all_tokens(path, open_engine, endpoints, patience):
    opened = open_engine(endpoints["r"], path=path, groups=1)
    n_tokens = run(opened.engine, 2)
    size = 4 * SPEC.embd * n_tokens
    (edge,) = between(opened.engine.metrics())
    assert (edge.source, edge.target, edge.path, edge.fell_back) == (0, 1, path, False)
    assert edge.bytes == size
    assert set(edge.transfers) == {path}

    def told():
        observed = opened.ring.remote.observer
        sights = observed.look()
        counters = [sights[node].counters for node in opened.ring.remote.nodes]
        return None if None in counters else counters

    # The nodes say the same: what one has sent the other has received.
    opened.until(lambda _: told() and told()[1].devices[0].computations, patience)
    expected = 0 if path is Path.HUB else size
    opened.until(lambda _: sum(p.sent for p in told()[0].peers.values()) >= expected, patience)
    sender, receiver = told()
    assert {n: p.sent for n, p in sender.peers.items()} == (
        {endpoints["r"][1]: size} if expected else {}
    )
    assert [p.received for p in receiver.peers.values()] == ([size] if expected else [])


def test_the_questions_are_no_traffic_of_the_ring(open_engine, endpoints, patience):
    opened = open_engine(endpoints["r"])
    run(opened.engine)
    before = opened.ring.remote.counters.snapshot()
    for count in (1, 2):
        opened.until(lambda found: found.stages[1].computations >= 1, patience)
        time.sleep(0.1 * count)
    assert opened.ring.remote.counters.snapshot() == before
    assert all(Command.READ_COUNTERS.name not in node.commands for node in before.values())


def test_nobody_is_asked_where_nobody_wants_to_know(open_engine, endpoints):
    before = set(threading.enumerate())  # an observer of another test may be ending
    opened = open_engine(endpoints["r"])
    opened.engine.submit(PROMPT, n_predict=2).result(SECONDS)
    assert "observer" not in {thread.name for thread in set(threading.enumerate()) - before}


def test_looking_while_a_text_is_decoded_changes_no_token(open_engine, endpoints):
    opened = open_engine(endpoints["r"])
    alone = opened.engine.submit(PROMPT, n_predict=200).result(SECONDS)
    seen, looks = threading.Event(), []
    # The text waits for us, or we might be held up until it has ended.
    opened.engine.after_step(lambda: seen.is_set() or time.sleep(0.05))
    job = opened.engine.submit(PROMPT, n_predict=200)
    for _ in job:
        looks.append(opened.engine.metrics())
        if any(slot.n_done > 1 for slot in looks[-1].slots):
            seen.set()
    assert job.result(SECONDS).ids == alone.ids
    assert len(looks) > 1
    slots = [slot for look in looks for slot in look.slots if slot.job]
    assert {slot.n_prompt for slot in slots} == {len(PROMPT)}
    assert max(slot.n_done for slot in slots) > 1


def test_a_stock_server_is_unknown_and_the_others_still_count(open_engine, endpoints, patience):
    opened = open_engine([endpoints["r"][0], *endpoints["s"]])
    run(opened.engine)
    metrics = opened.until(lambda found: found.stages[0].computations > 0, patience)
    ours, stock = metrics.stages
    assert (ours.state, stock.state, stock.why) == ("ok", "unknown", "")
    assert (stock.busy_seconds, stock.computations) == (0, 0)
    assert stock.memory_total > 0
    (edge,) = between(metrics)
    assert (edge.path, edge.fell_back) == ("hub", False)


def test_traffic_with_the_coordinator_is_an_edge_too(open_engine, endpoints):
    opened = open_engine(endpoints["r"])
    run(opened.engine)
    edges = {(edge.source, edge.target): edge.bytes for edge in opened.engine.metrics().edges}
    assert set(edges) == {(0, 1), (-1, 0), (-1, 1), (0, -1), (1, -1)}
    assert min(edges.values()) > 0
    assert edges[-1, 0] > edges[0, -1]  # weights went there


@pytest.mark.parametrize("kinds", ["rr", "rs"])
def test_a_node_that_dies_is_lost_and_counted_with_its_cause(kinds, open_engine, patience):
    with ExitStack() as stack:
        peers = open_peers(stack, kinds)
        opened = open_engine([peer.endpoint for peer in peers])
        run(opened.engine)
        peers[1].kill()
        metrics = opened.until(lambda found: found.stages[1].state == "lost", patience)
        assert peers[1].endpoint in metrics.stages[1].why
        with pytest.raises(RinglineError):
            opened.engine.submit(PROMPT).result(SECONDS)
        errors = opened.engine.metrics().errors
        assert list(errors.values()) == [1]
        assert next(iter(errors)).split()[0] == peers[1].endpoint


def test_a_node_that_does_not_answer_the_question_is_not_lost(open_engine, endpoints, patience):
    opened = open_engine(endpoints["r"])
    node = opened.ring.remote.nodes[0]
    tries = []

    def refuse(*, silence):
        tries.append(silence)
        raise RefusedError("this session has 64 connections already", peer=endpoints["r"][0])

    node.attach_apart = refuse
    run(opened.engine)
    metrics = opened.until(lambda found: len(tries) > 1 and found.stages[1].computations, patience)
    assert [(stage.state, stage.why) for stage in metrics.stages] == [("ok", ""), ("ok", "")]
    del node.attach_apart
    opened.until(lambda found: found.stages[0].computations, patience)


def test_slots_and_caches_say_what_they_hold(open_engine):
    engine = open_engine([]).engine
    assert [slot.state for slot in engine.metrics().slots] == ["idle", "idle"]
    engine.submit(PROMPT, n_predict=N_PREDICT).result(SECONDS)
    metrics = engine.metrics()
    # The last token that was chosen is in no cache.
    assert sorted(slot.n_cached for slot in metrics.slots) == [0, len(PROMPT) + N_PREDICT - 1]
    assert (metrics.kv_used_tokens, metrics.kv_total_tokens) == (0, 512)
    assert [slot.n_remain for slot in metrics.slots] == [-1, -1]
    looked = threading.Event()
    engine.after_step(lambda: looked.wait(5))  # the text must not end before we look
    job = engine.submit(PROMPT, n_predict=200)
    next(iter(job))
    metrics = engine.metrics()
    looked.set()
    (slot,) = [slot for slot in metrics.slots if slot.job]
    assert (slot.state, slot.job, slot.n_prompt) == ("decoding", 2, len(PROMPT))
    assert slot.n_done + slot.n_remain == 200
    assert metrics.kv_used_tokens == slot.n_cached > 0
    job.cancel()


def test_this_machine_alone_is_one_stage_that_counts_nothing(open_engine):
    metrics = open_engine([]).engine.metrics()
    (stage,) = metrics.stages
    assert (stage.node, stage.state, stage.n_layers) == ("", "unknown", SPEC.layers)
    assert metrics.edges == []


def test_all_of_it_crosses_the_socket_of_the_engine_process(open_engine, endpoints):
    opened = open_engine(endpoints["r"])
    run(opened.engine)
    metrics = opened.engine.metrics()
    raw = msgspec.msgpack.encode(metrics)
    assert msgspec.msgpack.decode(raw, type=EngineMetrics) == metrics


def test_a_histogram_keeps_all_values():
    histogram = Histogram.over([1, 2])
    for value in (0.5, 1.0, 1.5, 7.0):
        histogram.add(value)
    assert (histogram.counts, histogram.total) == ([2, 1, 1], 10.0)
    copied = histogram.copy()
    histogram.add(1.0)
    assert copied.counts == [2, 1, 1]


def test_latencies_are_counted_where_jobs_end(open_engine):
    engine = open_engine([]).engine
    run(engine, 3)
    metrics = engine.metrics()
    assert metrics.ttft_histogram.bounds == list(TTFT_BOUNDS)
    assert sum(metrics.ttft_histogram.counts) == sum(metrics.tpot_histogram.counts) == 3
    assert metrics.ttft_histogram.total == pytest.approx(3 * metrics.ttft.mean)


def test_an_error_without_a_node_is_the_coordinators():
    meter = Meter([GroupMetrics(1)])
    meter.engine_ends(RinglineError("x"))
    meter.engine_ends(NetworkError("x", peer="h:1"))
    assert meter.look(0, [0]).errors == {"coordinator RinglineError": 1, "h:1 NetworkError": 1}
