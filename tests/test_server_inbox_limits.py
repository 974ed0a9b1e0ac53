"""The room of an inbox: early data wait for it, give it back, and are forgotten after a while."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringline.errors import TransferError
from ringline.server import inbox as module
from tests.inbox_bench import DATA, EMPTY, OTHER, TICKET, Bench, assert_fails, result


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def bench(threads: ThreadPoolExecutor) -> Bench:
    return Bench(threads)


def test_voiding_forgets_early_data_and_their_room(threads):
    bench = Bench(threads, most_bytes=16)
    assert bench.deliver(TICKET)
    filling = bench.offer(OTHER, 8)
    bench.inbox.void(TICKET)
    bench.inbox.void(OTHER)
    filling[:] = DATA
    bench.inbox.arrived(OTHER)
    assert bench.deliver(b"3" * 16, bytes(16))
    for ticket in (TICKET, OTHER):
        with pytest.raises(TransferError, match="the client gave it up"):
            bench.receive(ticket)


def test_early_data_that_break_off_give_their_room_back(threads):
    bench = Bench(threads, most_bytes=8)
    place = bench.offer(TICKET, 8)
    place[:3] = DATA[:3]
    bench.inbox.lost(TICKET, "the data broke off")
    assert bench.deliver(OTHER)
    assert_fails(bench.receiving(), "the data broke off")


def test_data_that_come_after_the_deadline_are_thrown_away(threads):
    bench = Bench(threads, most_bytes=8)
    assert_fails(bench.receiving(seconds=0), "no data within")
    assert not bench.deliver()
    assert bench.memory == EMPTY
    assert bench.deliver(OTHER), "there is room for others"


def test_early_data_wait_for_room(threads):
    bench = Bench(threads, most_bytes=8)
    assert bench.deliver(TICKET)
    blocked = bench.delivering(OTHER)
    time.sleep(0.05)
    assert not blocked.done()
    assert bench.receive(TICKET) == DATA
    assert result(blocked)
    assert bench.receive(OTHER) == DATA


def test_blocked_data_go_to_a_command_that_comes_meanwhile(threads):
    bench = Bench(threads, most_bytes=8)
    assert bench.deliver(TICKET)
    blocked = bench.delivering(OTHER, b"z" * 8)
    waiting = bench.receiving(OTHER)
    assert result(blocked)
    assert result(waiting) is None
    assert bench.memory == b"z" * 8


def test_blocked_data_are_let_go_when_their_ticket_is_voided(threads):
    bench = Bench(threads, most_bytes=8)
    assert bench.deliver(TICKET)
    blocked = bench.delivering(OTHER)
    bench.inbox.void(OTHER)
    assert not result(blocked)


def test_data_that_find_no_room_in_time_are_named_to_whoever_waits_later(threads):
    bench = Bench(threads, most_bytes=8)
    assert bench.deliver(OTHER)
    assert bench.offer(TICKET, 8, seconds=0.05) is None
    assert_fails(bench.receiving(), "no room for 8 bytes that came early")


def test_early_data_larger_than_the_inbox_are_named_at_once(threads):
    bench = Bench(threads, most_bytes=7)
    assert bench.offer(TICKET, 8) is None
    assert_fails(bench.receiving(), "no room for 8 bytes")


def test_data_larger_than_the_inbox_reach_a_command_that_waits(threads):
    bench = Bench(threads, most_bytes=7)
    waiting = bench.receiving()
    assert bench.deliver()
    result(waiting)
    assert bench.memory == DATA


def test_the_number_of_early_tickets_is_bounded(threads):
    bench = Bench(threads, most_tickets=2)
    assert bench.deliver(b"3" * 16)
    assert bench.deliver(b"4" * 16)
    assert bench.offer(TICKET, 8, seconds=0.01) is None
    assert bench.receive(b"3" * 16) == DATA
    assert bench.deliver(TICKET)


def test_what_nobody_claims_is_forgotten_after_a_while(threads, monkeypatch):
    bench = Bench(threads, most_bytes=8)
    assert bench.deliver(TICKET)
    bench.inbox.lost(OTHER, "it broke off")
    monkeypatch.setattr(module, "EXPIRY", -1.0)
    assert bench.deliver(b"3" * 16)
    assert set(bench.inbox._entries) == {b"3" * 16}
    monkeypatch.setattr(module, "EXPIRY", 60.0)
    with pytest.raises(TransferError, match="no data within"):
        bench.receive(TICKET, seconds=0)


def test_what_is_waited_for_does_not_expire(bench, monkeypatch):
    waiting = bench.receiving()
    place = bench.offer(TICKET, 8)
    monkeypatch.setattr(module, "EXPIRY", -1.0)
    assert bench.deliver(OTHER)
    place[:] = DATA
    bench.inbox.arrived(TICKET)
    result(waiting)
    assert bench.memory == DATA


def test_nothing_is_left_when_all_is_done(threads):
    bench = Bench(threads, most_bytes=64)
    tickets = [bytes([number]) * 16 for number in range(1, 33)]
    for ticket in tickets:  # more than there is room for at once
        bench.delivering(ticket)
    for ticket in tickets:
        assert bench.receive(ticket, place=False) == DATA
    assert (bench.inbox._entries, bench.inbox._used) == ({}, 0)
