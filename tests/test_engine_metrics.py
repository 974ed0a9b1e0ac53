"""What an engine counts: summaries, latencies, busy shares, and one stream of events for a job."""

from __future__ import annotations

import threading

import pytest

from ringline.engine.events import Failure, Outcome, Piece, Stream, Timings
from ringline.engine.generation import StopReason
from ringline.engine.job import Clock
from ringline.engine.metrics import WINDOW, GroupMetrics, Meter, Summary
from ringline.engine.task import TaskState
from ringline.errors import CallerError, NetworkError


def test_a_summary_names_values_that_occurred():
    assert Summary.of([4.0, 1.0, 3.0, 2.0]) == Summary(4, 2.5, 2.0, 4.0)
    assert Summary.of(range(1, 101)) == Summary(100, 50.5, 50, 95)
    assert Summary.of([7.0]) == Summary(1, 7.0, 7.0, 7.0)
    assert Summary.of([]) == Summary()


def test_times_are_counted_from_the_arrival():
    clock = Clock(arrived=10.0, started=11.0, first=13.0, last=17.0, ended=18.0)
    assert clock.timings(5) == Timings(queued=1.0, first_token=3.0, total=8.0, per_token=1.0)


def test_a_job_that_never_started_waited_all_the_time():
    assert Clock(arrived=10.0, ended=14.0).timings(0) == Timings(queued=4.0, total=4.0)


def test_one_token_has_no_time_per_token():
    assert Clock(arrived=1.0, started=1.0, first=2.0, last=2.0, ended=2.0).timings(1).per_token == 0


def test_the_newest_latencies_are_summed_up():
    meter = Meter([GroupMetrics(2)])
    for number in range(WINDOW + 10):
        meter.job_ends(TaskState.DONE, Timings(first_token=number + 1.0, per_token=1.0), 3)
    found = meter.look(queued=1, busy_slots=[2])
    assert (found.ttft.count, found.tpot.mean) == (WINDOW, 1.0)
    assert found.ttft.p95 > WINDOW * 0.95
    assert (found.ended, found.reused_tokens) == ({"done": WINDOW + 10}, 3 * (WINDOW + 10))


def test_a_group_is_busy_from_the_beginning_of_a_step_to_its_end():
    meter = Meter([GroupMetrics(2), GroupMetrics(1)])
    meter.step_begins(0)
    under_way = meter.look(0, [1, 0])
    meter.step_ends(0)
    after = meter.look(0, [0, 0])
    assert under_way.groups[0].step_seconds > 0 == under_way.groups[0].steps
    assert (after.groups[0].step_seconds, after.groups[0].steps) == (0, 1)
    assert 0 < after.busy_share[0] <= 1
    assert after.busy_share[1] == 0


def outcome(text="ab"):
    return Outcome(text, (1, 2), StopReason.LIMIT)


def test_pieces_are_read_once_and_the_end_by_everybody():
    stream = Stream()
    for event in (Piece("a", (1,)), Piece("b", (2,)), outcome()):
        stream.put(event)
    assert [piece.text for piece in stream] == ["a", "b"]
    assert list(stream) == []
    assert stream.result(0) == stream.result(0) == outcome()
    assert stream.ended


def test_a_failure_is_raised_after_the_pieces_that_came_before_it():
    stream, seen = Stream(), []
    stream.put(Piece("a", (1,)))
    stream.put(Failure(NetworkError("lost", peer="h:1")))
    with pytest.raises(NetworkError, match="lost"):
        seen.extend(piece.text for piece in stream)
    with pytest.raises(NetworkError, match="lost"):
        stream.result(0)
    assert seen == ["a"]


def test_a_reader_waits_for_what_comes_later():
    stream = Stream()
    with pytest.raises(CallerError, match="not ended within 0 s"):
        stream.result(0)
    timer = threading.Timer(0.01, lambda: stream.put(outcome()))
    timer.start()
    assert list(stream) == []
    timer.join()
