"""The sums of a node over all its sessions: they outlive sessions and never fall."""

from __future__ import annotations

import os
import threading

from ringline.server.exposition import _Named
from ringline.server.ledger import Ledger
from ringline.server.limits import MOST_LABELS
from ringline.server.tally import OTHER, SHEET_SIZE, Counter, Tally, read_counts

BUSY = (Counter.BUSY, "0")


def test_what_live_and_ended_sessions_counted_is_summed_up():
    ledger = Ledger(2)
    first, second = ledger.take(), ledger.take()
    ledger.tally.add(Counter.SESSIONS, 2)
    for sheet, size in ((first, 3), (second, 4)):
        tally = Tally(sheet)
        tally.add(Counter.BUSY, size, "0")
        tally.close()
    assert ledger.counts() == {BUSY: 7, ("sessions", ""): 2}
    ledger.give_back(first)
    assert ledger.counts()[BUSY] == 7
    assert read_counts(first) == {}


def test_a_sheet_is_used_again_from_nothing():
    ledger = Ledger(1)
    for _ in range(20):
        sheet = ledger.take()
        tally = Tally(sheet)
        tally.add(Counter.COMPUTED, 1, "0")
        tally.close()
        ledger.give_back(sheet)
    assert ledger.counts() == {("computed", "0"): 20}


def test_more_processes_than_sheets_are_counted_when_they_have_ended():
    ledger = Ledger(1)
    sheets = [ledger.take() for _ in range(10)]
    for sheet in sheets:
        tally = Tally(sheet)
        tally.add(Counter.COMPUTED, 1, "0")
        tally.close()
    assert ledger.counts()["computed", "0"] < 10
    for sheet in sheets:
        ledger.give_back(sheet)
    assert ledger.counts()["computed", "0"] == 10


def test_a_session_process_keeps_its_own_sheet_alone():
    ledger = Ledger(2)
    mine, other = ledger.take(), ledger.take()
    pid = os.fork()
    if pid == 0:
        ledger.keep_only(mine)
        Tally(mine).add(Counter.BUSY, 5, "0")
        os._exit(0 if other.closed and ledger._own.closed and not mine.closed else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert ledger.counts() == {BUSY: 5}


def test_nonsense_on_a_sheet_adds_no_counter():
    ledger = Ledger(1)
    sheet = ledger.take()
    sheet[:] = b"\xff" * SHEET_SIZE
    ledger.give_back(sheet)
    assert ledger.counts() == {}


def test_a_sum_never_falls_while_sessions_end():
    ledger, ended, seen = Ledger(4), threading.Event(), []

    def read():
        while not ended.is_set():
            seen.append(ledger.counts().get(BUSY, 0))

    reader = threading.Thread(target=read)
    reader.start()
    for _ in range(300):
        sheets = [ledger.take() for _ in range(3)]
        for sheet in sheets:
            tally = Tally(sheet)
            tally.add(Counter.BUSY, 1, "0")
            tally.close()
        for sheet in sheets:
            ledger.give_back(sheet)
    ended.set()
    reader.join()
    assert seen == sorted(seen)
    assert ledger.counts()[BUSY] == 900


def test_a_peer_that_has_a_name_keeps_it_and_nothing_falls():
    named = _Named(Counter.PEER_SENT)

    def values(**sizes):
        return named.values({(Counter.PEER_SENT, name): size for name, size in sizes.items()})

    assert values(a=5, b=1) == {"a": 5, "b": 1}
    # The session of "a" has ended, and its count stands under "other" now.
    assert values(b=1, other=5) == {"a": 5, "b": 1}
    assert values(b=2, other=7) == {"a": 5, "b": 2, OTHER: 2}


def test_names_beyond_the_limit_are_one():
    named = _Named(Counter.PEER_SENT)
    found = named.values({(Counter.PEER_SENT, str(n)): 1 for n in range(3 * MOST_LABELS)})
    assert len(found) == MOST_LABELS + 1
    assert found[OTHER] == 2 * MOST_LABELS
