"""Jobs of an engine on this CPU: they end once, share slots, stop, are cancelled, fail alone."""

from __future__ import annotations

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.engine.engine import Engine
from ringline.engine.events import Failure, Outcome, Piece
from ringline.engine.generation import StopReason
from ringline.engine.task import TaskState
from ringline.errors import BusyError, CallerError, EngineError, NetworkError
from ringline.llama.sampler import SamplingParams

SECONDS = 60.0
#: quantised, so that a row is computed as if it were alone (see test_engine_soak).
SPEC = ModelSpec(type="q8_0")


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


@pytest.fixture(scope="module")
def placed(small):
    with Ring() as ring:
        yield ring, ring.place(small, n_threads=1, repack=False)


@pytest.fixture
def engine(placed):
    """Two slots of 256 tokens; steps of 64 tokens beside a stream."""
    with Engine(*placed, parallel=2, n_ctx=512, n_batch=128, n_ubatch=64) as opened:
        yield opened


@pytest.fixture
def roomy(placed):
    """Two slots of 16,384 tokens: a job that nobody cancels runs for many seconds."""
    with Engine(*placed, parallel=2, n_ctx=32768) as opened:
        yield opened


def threads_of_engines():
    return [t for t in threading.enumerate() if t.name.startswith(("group-", "watchdog"))]


def wait_for(condition, patience):
    deadline = time.monotonic() + patience(SECONDS)
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_a_job_gives_the_ids_of_a_lone_run(engine, small):
    with Ring() as ring, ring.load(small, n_threads=1, repack=False, n_ctx=256) as loaded:
        run = loaded.generate("Once upon a time", n_predict=20)
        text = "".join(run)
    outcome = engine.submit("Once upon a time", n_predict=20).result(SECONDS)
    assert (outcome.text, list(outcome.ids)) == (text, run.ids)
    assert (outcome.stop_reason, outcome.n_prompt) == (StopReason.LIMIT, len(run.prompt))


def test_pieces_come_while_the_job_runs_and_add_up_to_its_text(engine):
    job = engine.submit("Go", n_predict=20)
    pieces = list(job)
    outcome = job.result(0)
    assert len(pieces) > 1
    assert "".join(piece.text for piece in pieces) == outcome.text
    assert sum((piece.ids for piece in pieces), ()) == outcome.ids
    assert list(job) == []  # they were taken
    assert outcome.timings.total >= outcome.timings.first_token > outcome.timings.queued >= 0


def test_a_sink_takes_the_events_and_the_last_one_is_the_end(engine, patience):
    events = []
    job = engine.submit("Go", n_predict=5, sink=events.append)
    wait_for(lambda: events and isinstance(events[-1], Outcome), patience)
    assert all(isinstance(event, Piece) for event in events[:-1])
    assert job.state is TaskState.DONE


def test_a_sink_that_fails_stops_nobody_else(engine, caplog):
    def broken(event):
        raise ValueError("mine")

    engine.submit("Go", n_predict=5, sink=broken)
    assert engine.submit("Go", n_predict=5).result(SECONDS).ids
    assert "what takes the events of a job failed" in caplog.text


def test_more_jobs_than_slots_wait_and_all_end(engine):
    jobs = [engine.submit(f"Job {n}", n_predict=3 + n % 4) for n in range(9)]
    assert [len(job.result(SECONDS).ids) for job in jobs] == [3 + n % 4 for n in range(9)]
    metrics = engine.metrics()
    assert (metrics.submitted, metrics.ended, metrics.queued) == (9, {"done": 9}, 0)
    assert metrics.generated_tokens == sum(3 + n % 4 for n in range(9))
    assert metrics.ttft.count == metrics.tpot.count == 9
    assert [(g.slots, g.busy_slots) for g in metrics.groups] == [(2, 0)]
    assert 0 < metrics.busy_share[0] <= 1


def test_many_threads_may_submit_at_once(engine):
    def run(number):
        return engine.submit([5 + number, 6, 7], n_predict=4).result(SECONDS).ids

    with ThreadPoolExecutor(8) as pool:
        first, second = list(pool.map(run, range(16))), list(pool.map(run, range(16)))
    assert first == second


def test_no_tokens_wanted_decodes_the_prompt_alone(engine):
    outcome = engine.submit("Go", n_predict=0).result(SECONDS)
    assert (outcome.text, outcome.ids, outcome.stop_reason) == ("", (), StopReason.LIMIT)
    assert outcome.timings.first_token == 0


def test_a_full_context_ends_the_text_and_its_last_place_is_used(engine):
    outcome = engine.submit([5] * 250).result(SECONDS)
    assert outcome.stop_reason is StopReason.CONTEXT_FULL
    assert len(outcome.ids) == 256 - 250 + 1


def test_a_stop_string_ends_the_text_before_it(engine):
    text = engine.submit("Go", n_predict=30).result(SECONDS).text
    stop = text[9:14]
    job = engine.submit("Go", n_predict=30, stop=[stop])
    shown = "".join(piece.text for piece in job)
    outcome = job.result(0)
    assert (outcome.stop_reason, outcome.stop) == (StopReason.STOP, stop)
    assert shown == outcome.text == text[: text.index(stop)]


def test_the_slot_of_a_cancelled_job_is_free_for_the_next(roomy, patience):
    jobs = [roomy.submit("Go on", n_predict=-1) for _ in range(2)]
    waiting = roomy.submit("And you", n_predict=3)
    next(iter(jobs[0]))
    assert waiting.state is TaskState.QUEUED
    jobs[0].cancel()
    outcome = jobs[0].result(patience(SECONDS))
    assert outcome.stop_reason is StopReason.CANCELLED
    assert outcome.ids
    assert waiting.result(patience(SECONDS)).stop_reason is StopReason.LIMIT
    jobs[0].cancel()  # has ended: nothing happens
    jobs[1].cancel()
    jobs[1].result(patience(SECONDS))
    assert roomy.metrics().ended == {"cancelled": 2, "done": 1}


def test_a_job_that_waits_can_be_cancelled(roomy):
    running = [roomy.submit("Go on", n_predict=-1) for _ in range(2)]
    waiting = roomy.submit("Wait", n_predict=3)
    waiting.cancel()
    assert waiting.result(0).stop_reason is StopReason.CANCELLED
    for job in running:
        job.cancel()


def test_a_long_prompt_does_not_stop_a_stream(engine, patience):
    pieces, before, there = [], [], threading.Event()

    def tell(event):
        pieces.append(event)
        there.wait(patience(SECONDS))  # on the engine's thread: 99 tokens are still to come

    stream = engine.submit("Go", n_predict=100, sink=tell)
    wait_for(lambda: pieces, patience)
    prompt = [7 + n % 90 for n in range(240)]
    long = engine.submit(prompt, n_predict=1, sink=lambda event: before.append(len(pieces)))
    there.set()
    wait_for(lambda: before and long.state is TaskState.DONE, patience)
    # 240 tokens beside one stream, in steps of 64: four of them, not one, and it goes on meanwhile.
    assert before[0] >= 4
    # A step is counted when it is over, a moment after its jobs have ended.
    wait_for(lambda: engine.metrics().groups[0].steps >= 5, patience)
    assert stream.state is not TaskState.FAILED
    stream.cancel()


def test_a_prompt_that_begins_like_an_earlier_one_gives_the_same_ids_for_less(engine):
    story = [7 + n % 90 for n in range(100)]
    fresh = engine.submit([*story, 5, 6], n_predict=8).result(SECONDS)
    before = engine.metrics()
    again = engine.submit([*story, 5, 6], n_predict=8).result(SECONDS)
    fork = engine.submit([*story, 9], n_predict=8).result(SECONDS)
    after = engine.metrics()
    assert (fresh.n_reused, again.n_reused, fork.n_reused) == (0, 101, 100)
    assert again.ids == fresh.ids
    assert after.prompt_tokens - before.prompt_tokens == 2
    assert after.reused_tokens == 201


def test_what_was_reused_gives_the_ids_of_a_fresh_cache(engine, placed):
    story = [7 + n % 90 for n in range(100)]
    engine.submit(story, n_predict=8).result(SECONDS)
    fork = engine.submit([*story[:60], 9, 10], n_predict=8).result(SECONDS)
    assert fork.n_reused == 60
    with Engine(*placed, parallel=1, n_ctx=256) as other:
        assert other.submit([*story[:60], 9, 10], n_predict=8).result(SECONDS).ids == fork.ids


def test_a_sliding_window_is_never_reused(tmp_path):
    path = make_model.make_model(tmp_path / "window.gguf", ModelSpec(arch="gemma3"))
    prompt = [7 + n % 90 for n in range(100)]
    with Ring() as ring, Engine(ring, path, parallel=1, n_ctx=256) as engine:
        outcomes = [engine.submit(prompt, n_predict=5).result(SECONDS) for _ in range(2)]
    assert outcomes[0].ids == outcomes[1].ids
    assert outcomes[1].n_reused == 0


def test_logprobs_come_with_every_token_when_asked(engine):
    job = engine.submit("Go", n_predict=6, logprobs=2)
    pieces = list(job)
    outcome = job.result(0)
    assert [entry.token for entry in outcome.logprobs] == list(outcome.ids)
    assert sum((piece.logprobs for piece in pieces), ()) == outcome.logprobs
    for entry in outcome.logprobs:  # greedy: the one that was chosen is the likeliest
        assert entry.top[0].token == entry.token
        assert len(entry.top) == 2
        assert entry.logprob == entry.top[0].logprob < 0


def test_each_job_has_a_sampler_of_its_own(engine):
    def ids(seed):
        sampling = SamplingParams(temperature=1.5, seed=seed)
        return engine.submit("Go", n_predict=12, sampling=sampling)

    jobs = [ids(seed) for seed in (1, 2, 1, 2)]
    found = [job.result(SECONDS).ids for job in jobs]
    assert found[0] == found[2] != found[1] == found[3]


def test_the_penalties_know_the_prompt(engine):
    plain = engine.submit([5, 6, 7], n_predict=1).result(SECONDS)
    prompt = [plain.ids[0], 5, 6, 7]
    sampling = SamplingParams(temperature=0, presence_penalty=1e6)
    found = engine.submit(prompt, n_predict=1, sampling=sampling).result(SECONDS)
    assert found.ids[0] not in prompt


def test_a_grammar_that_allows_nothing_more_fails_its_own_job_alone(engine):
    sampling = SamplingParams(temperature=0, grammar='root ::= "ab"', logit_bias={2: float("-inf")})
    other = engine.submit("Go", n_predict=20)
    job = engine.submit("Go", sampling=sampling, n_predict=20)
    with pytest.raises(CallerError, match="the grammar allows no token"):
        job.result(SECONDS)
    assert job.state is TaskState.FAILED
    assert other.result(SECONDS).stop_reason is StopReason.LIMIT


@pytest.mark.parametrize(
    ("prompt", "options", "reason"),
    [
        ([], {}, "the prompt is empty"),
        (
            [5] * 257,
            {},
            "257 tokens and exceeds the available context size: the context of one",
        ),
        ("Go", {"stop": ["a", ""]}, "a stop string is empty"),
        ("Go", {"logprobs": 101}, "logprobs is 101"),
        ("Go", {"sampling": SamplingParams(grammar="no grammar")}, "the grammar cannot be used"),
    ],
)
def test_what_cannot_be_done_is_told_to_the_one_who_asks(prompt, options, reason, engine):
    with pytest.raises(CallerError, match=reason):
        engine.submit(prompt, **options)
    assert engine.metrics().submitted == 0


def test_a_full_queue_says_so(placed):
    with Engine(*placed, parallel=1, n_ctx=16384, queue=1) as engine:
        engine.submit("Go", n_predict=-1)
        engine.submit("Go", n_predict=-1)
        with pytest.raises(BusyError):
            engine.submit("Go", n_predict=-1)


def test_a_result_can_be_waited_for_only_so_long(roomy):
    job = roomy.submit("Go", n_predict=-1)
    with pytest.raises(CallerError, match=r"not ended within 0\.01 s"):
        job.result(0.01)
    job.cancel()


def test_closing_the_engine_ends_all_jobs(placed):
    with Engine(*placed, parallel=1, n_ctx=16384) as engine:
        jobs = [engine.submit("Go", n_predict=-1) for _ in range(3)]
        next(iter(jobs[0]))
    for job in jobs:
        with pytest.raises(EngineError, match="the engine was closed before this job ended"):
            job.result(0)
        with pytest.raises(EngineError):
            list(job)
    with pytest.raises(EngineError):
        engine.submit("Go")
    engine.close()
    assert threads_of_engines() == []


def test_closing_the_ring_closes_its_engines_first(small):
    with Ring() as ring:
        engine = Engine(ring, small, parallel=1, n_ctx=16384)
        job = engine.submit("Go", n_predict=-1)
        next(iter(job))
    with pytest.raises(EngineError):
        job.result(0)


def test_a_lost_node_ends_all_jobs_with_its_error(placed, monkeypatch):
    ring, model = placed
    lost = threading.Event()

    def check():
        if lost.is_set():
            raise NetworkError("connection lost", peer="10.0.0.1:1")

    monkeypatch.setattr(ring.remote, "check", check)
    events = []
    with Engine(ring, model, parallel=2, groups=2, n_ctx=32768) as engine:
        jobs = [engine.submit("Go", n_predict=-1) for _ in range(3)]
        engine.submit("Go", n_predict=-1, sink=events.append)
        next(iter(jobs[0]))
        lost.set()
        for job in jobs:
            with pytest.raises(NetworkError, match=r"10\.0\.0\.1:1: connection lost"):
                job.result(SECONDS)
        with pytest.raises(NetworkError):
            engine.submit("Go")
    assert [event for event in events if isinstance(event, Failure)] == events[-1:]


def test_a_context_that_cannot_be_made_leaves_nothing_behind(placed):
    ring, model = placed
    with pytest.raises(CallerError):
        Engine(ring, model, parallel=300, n_ctx=0)
    assert threads_of_engines() == []


def test_steps_too_small_for_the_slots_are_refused(placed):
    with pytest.raises(CallerError, match="3 tokens has no room for the 4 slots of a group"):
        Engine(*placed, parallel=4, n_ctx=1024, n_batch=3, n_ubatch=3)


def test_a_step_that_takes_long_is_logged_with_who_is_waited_for(
    placed, monkeypatch, caplog, patience
):
    ring, model = placed
    go = threading.Event()
    go.set()
    monkeypatch.setattr(ring.remote, "check", lambda: go.wait(SECONDS))
    caplog.set_level(logging.WARNING, "ringline.engine.watchdog")
    with Engine(ring, model, parallel=1, n_ctx=256, step_deadline=0.02) as engine:
        go.clear()
        job = engine.submit("Go", n_predict=1)
        wait_for(lambda: "waiting for" in caplog.text, patience)
        go.set()
        job.result(SECONDS)
    assert "group 0 has been in one step" in caplog.text
    assert "with 1 requests; waiting for this machine" in caplog.text
