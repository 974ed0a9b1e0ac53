"""Counters that outlive the process that counts, and what a session tells its client of them."""

from __future__ import annotations

import mmap
import os
import struct
import threading

import pytest

from ringline.errors import ProtocolError, RefusedError
from ringline.server.limits import MOST_LABELS
from ringline.server.tally import OTHER, SHEET_SIZE, Counter, Tally, read_counts
from ringline.wire.counters import DeviceCounters, PeerBytes, ReadCounters, SessionCounters
from ringline.wire.extension import Feature, Role
from tests.peers.processes import ringline_node
from tests.rendezvous_sides import deliver, new_ticket, receive
from tests.server_client import Client, addition, floats


def test_what_was_counted_is_read_from_the_sheet_after_the_process_was_killed():
    sheet = mmap.mmap(-1, SHEET_SIZE)
    pid = os.fork()
    if pid == 0:
        tally = Tally(sheet)
        tally.add(Counter.BUSY, 7, "0")
        tally.add(Counter.BUSY, 5, "0")
        os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert read_counts(sheet) == {("busy", "0"): 12}


def test_labels_beyond_the_limit_are_counted_together():
    tally = Tally()
    for number in range(MOST_LABELS + 10):
        tally.add(Counter.PEER_SENT, 1, f"10.0.0.{number}:1")
    tally.add(Counter.PEER_RECEIVED, 3, "10.0.0.1")
    counts = tally.counts()
    assert sum(name == Counter.PEER_SENT for name, _ in counts) == MOST_LABELS + 1
    assert counts[Counter.PEER_SENT, OTHER] == 10
    assert counts[Counter.PEER_RECEIVED, "10.0.0.1"] == 3


def test_a_sheet_that_is_full_of_labels_takes_the_rest_as_other():
    tally = Tally()
    for counter in Counter:
        for number in range(2 * MOST_LABELS):
            tally.add(counter, 1, str(number))
    counts = tally.counts()
    assert sum(counts.values()) == 2 * MOST_LABELS * len(Counter)
    assert all(counts[counter, OTHER] >= MOST_LABELS for counter in Counter)


def test_threads_lose_nothing():
    tally = Tally()

    def count():
        for number in range(2000):
            tally.add(Counter.REFUSED, 1, str(number % 3))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(tally.counts().values()) == 8000


def test_nonsense_on_a_sheet_is_read_as_something_and_never_fails():
    sheet = mmap.mmap(-1, SHEET_SIZE)
    sheet[:] = b"\xff" * SHEET_SIZE
    assert read_counts(sheet)
    struct.pack_into("=Q", sheet, 8, 0)
    assert read_counts(sheet) == {}


def test_a_long_or_strange_label_is_cut_and_takes_no_room_of_others():
    tally = Tally()
    tally.add(Counter.PEER_SENT, 1, "x" * 500)
    tally.add(Counter.PEER_SENT, 2, "\udcff\n é")
    assert len(tally.counts()) == 2
    assert sum(tally.counts().values()) == 3


def test_counters_come_back_as_they_were_packed():
    counters = SessionCounters(
        (DeviceCounters(1, 2, 3, 4), DeviceCounters()), {"h:1": PeerBytes(5, 6)}
    )
    assert SessionCounters.unpack(counters.pack()) == counters


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{}",
        b'{"devices": 3, "peers": {}}',
        b'{"devices": [{"busy_ns": -1}], "peers": {}}',
        b'{"devices": [{"busy_ns": "x"}], "peers": {}}',
        b'{"devices": [], "peers": []}',
        b'{"devices": [{"busy_ns": 1}], "peers": {}}',
        b"\xff",
    ],
)
def test_a_reply_that_makes_no_sense_is_a_protocol_error(raw):
    with pytest.raises(ProtocolError, match="make no sense"):
        SessionCounters.unpack(raw)


def test_what_a_later_node_adds_is_ignored():
    raw = b'{"devices": [], "peers": {}, "colour": "blue"}'
    assert SessionCounters.unpack(raw) == SessionCounters((), {})


@pytest.fixture(scope="module")
def node():
    with ringline_node("--device=CPU", "--threads=1") as peer:
        yield peer


def ask(client):
    return SessionCounters.unpack(client.call(ReadCounters()))


def test_a_session_counts_its_own_computations_and_no_others(node):
    with Client.extended(node.endpoint) as mine, Client.extended(node.endpoint) as other:
        assert mine.greeting.features & Feature.COUNTERS
        tensors = addition(mine.alloc(1024))
        mine.write(tensors[0], floats(*range(8)))
        mine.write(tensors[1], floats(*range(8)))
        mine.compute([3], tensors)
        mine.recompute()
        with mine.attach(node.endpoint) as apart:
            mine.ping()
            (device,) = ask(apart).devices
        assert device.computations == 2
        assert device.busy_ns > 0 < device.lock_wait_ns
        assert ask(other).devices == (DeviceCounters(),)


def test_waiting_for_data_counts_for_the_device_that_they_are_for():
    """Two stages may be on one node: each has waited for its own."""
    with (
        ringline_node("--device=CPU,CPU", "--threads=1") as peer,
        Client.extended(peer.endpoint, level=4) as client,
        Client.extended(
            peer.endpoint, Role.PEER, level=4, session=client.greeting.session
        ) as source,
    ):
        ticket = new_ticket()
        receive(client, client.alloc(64, device=1).vector(1, 16), ticket)
        deliver(source, ticket)
        client.ping()
        first, second = ask(client).devices
    assert second.data_wait_ns > 0 == first.data_wait_ns


def test_a_peer_may_not_ask(node):
    with Client.extended(node.endpoint) as client:
        session = client.greeting.session
        with (
            Client.extended(node.endpoint, Role.PEER, session=session) as peer,
            pytest.raises(RefusedError, match="role peer may not send it"),
        ):
            peer.call(ReadCounters())
        client.ping()


def test_a_stock_client_may_not_ask(node):
    with Client.stock(node.endpoint) as client:
        client.post(ReadCounters())
        assert client.closed()
