"""Where data and the commands that wait for them meet: every order, every end, no late write."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ringline.errors import RefusedError, TransferError
from tests.inbox_bench import DATA, EMPTY, OTHER, TICKET, Bench, Told, assert_fails, result
from tests.peers.processes import patience


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


@pytest.fixture
def bench(threads: ThreadPoolExecutor) -> Bench:
    return Bench(threads)


def test_data_that_come_first_wait_for_their_command(bench):
    assert bench.deliver()
    assert bench.receive() == DATA
    assert bench.memory == EMPTY  # the caller writes them, in the order of its stream


def test_data_that_come_later_land_in_the_place_itself(bench):
    waiting = bench.receiving()
    place = bench.offer(TICKET, 8)
    assert place.obj is bench.memory
    place[:] = DATA
    bench.inbox.arrived(TICKET)
    assert result(waiting) is None
    assert bench.memory == DATA


def test_where_there_is_no_place_the_data_are_handed_over(bench):
    waiting = bench.receiving(place=False)
    assert bench.deliver()
    assert result(waiting) == DATA


def test_a_command_waits_for_early_data_that_still_arrive(bench):
    place = bench.offer(TICKET, 8)
    waiting = bench.receiving(seconds=0)
    place[:] = DATA
    bench.inbox.arrived(TICKET)
    assert result(waiting) == DATA


def test_tickets_do_not_mix(bench):
    waiting = bench.receiving(OTHER)
    assert bench.deliver(TICKET, b"x" * 8)
    assert not waiting.done()
    assert bench.deliver(OTHER, DATA)
    result(waiting)
    assert bench.memory == DATA
    assert bench.receive(TICKET) == b"x" * 8


def test_data_of_another_size_are_refused_whoever_is_first(bench):
    waiting = bench.receiving()
    assert not bench.deliver(data=b"123")
    assert_fails(waiting, "3 bytes came where 8 were expected")
    assert bench.deliver(OTHER, b"1234")
    with pytest.raises(TransferError, match="4 bytes came where 8 were expected"):
        bench.receive(OTHER)
    assert bench.memory == EMPTY


def test_no_data_at_all_can_be_received(bench):
    assert bench.deliver(data=b"")
    assert bench.receive(size=0) == b""


def test_a_ticket_is_used_once_by_those_who_send(bench):
    waiting = bench.receiving()
    place = bench.offer(TICKET, 8)
    assert bench.offer(TICKET, 8) is None
    place[:] = DATA
    bench.inbox.arrived(TICKET)
    result(waiting)
    assert bench.deliver(OTHER)
    assert not bench.deliver(OTHER, b"y" * 8)
    assert bench.receive(OTHER) == DATA


def test_a_ticket_is_used_once_by_those_who_wait(bench):
    """Two streams of a session: the second gets no data that went to the place of the first."""
    waiting = bench.receiving()
    with pytest.raises(RefusedError, match="is waited for already"):
        bench.receive()
    assert bench.deliver()
    result(waiting)
    assert bench.memory == DATA


def test_the_ticket_of_a_probe_is_nobodys(bench):
    nobody = bytes(16)
    assert bench.offer(nobody, 8) is None
    with pytest.raises(RefusedError, match="ticket 0"):
        bench.receive(nobody)


def test_a_voided_ticket_fails_at_once_and_takes_no_data(bench):
    bench.inbox.void(TICKET)
    assert not bench.deliver()
    assert_fails(bench.receiving(), "the client gave it up")
    assert not bench.deliver()
    assert bench.memory == EMPTY


def test_voiding_ends_a_wait(bench):
    waiting = bench.receiving()
    bench.inbox.void(TICKET)
    assert_fails(waiting, "the client gave it up")
    assert not bench.deliver()
    assert bench.memory == EMPTY


def test_voiding_while_data_arrive_in_place_waits_for_them(bench):
    waiting = bench.receiving()
    place = bench.offer(TICKET, 8)
    bench.inbox.void(TICKET)
    assert not waiting.done()
    place[:] = DATA
    bench.inbox.arrived(TICKET)
    assert result(waiting) is None
    assert bench.memory == DATA


def test_what_is_lost_on_its_way_is_said_at_once(bench):
    waiting = bench.receiving()
    place = bench.offer(TICKET, 8)
    place[:3] = DATA[:3]
    bench.inbox.lost(TICKET, "the data broke off")
    assert_fails(waiting, "the data broke off")


def test_what_was_lost_before_is_said_later(bench):
    bench.inbox.lost(TICKET, "the data broke off")
    assert_fails(bench.receiving(), "the data broke off")


def test_a_deadline_ends_the_wait_and_names_it(bench):
    assert_fails(bench.receiving(seconds=0.05), "no data within")


def test_a_deadline_does_not_end_what_has_begun(bench):
    deadline = Told()
    waiting = bench.receiving(deadline=deadline)
    place = bench.offer(TICKET, 8)
    assert place is not None
    deadline.over = True
    time.sleep(patience(0.3))
    assert not waiting.done()
    place[:] = DATA
    bench.inbox.arrived(TICKET)
    result(waiting)
    assert bench.memory == DATA


def test_a_client_that_leaves_ends_the_wait(bench):
    left = threading.Event()
    waiting = bench.receiving(gone=left.is_set)
    assert not waiting.done()
    left.set()
    assert_fails(waiting, "client left")
