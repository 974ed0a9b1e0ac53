"""An interrupt that comes while C runs is raised where it may be, and never lost."""

from __future__ import annotations

import ctypes
import signal
import socket
import threading
import time

import pytest

from ringline import interrupts
from ringline.ggml.guard import guard, owners
from ringline.interrupts import callback, deliver, deliver_late, held
from ringline.net.stream import Stream

NOT_RAISED, RAISED = "not raised", "raised"


def interrupt() -> str:
    """Ctrl-C, now; says whether it was raised here."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return RAISED
    return NOT_RAISED


@callback
def called_by_c(inner):
    return inner()


@callback
def interrupted_in_its_own_frame() -> str:
    signal.raise_signal(signal.SIGINT)
    return NOT_RAISED


@pytest.fixture(autouse=True)
def nothing_left():
    yield
    left, interrupts._waiting[:] = interrupts._waiting[:], []
    assert not left


def test_in_a_callbacks_own_frame_it_waits():
    with held():
        assert interrupted_in_its_own_frame() == NOT_RAISED
    with pytest.raises(KeyboardInterrupt):
        deliver()
    deliver()


def test_in_what_a_callback_calls_it_waits():
    with held():
        assert called_by_c(interrupt) == NOT_RAISED
    with pytest.raises(KeyboardInterrupt):
        deliver()


def test_beside_callbacks_it_is_raised_at_once():
    with held():
        assert interrupt() == RAISED
    deliver()


def test_without_a_call_into_c_nothing_is_different():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        interrupted_in_its_own_frame()
    with held(), held():
        assert signal.getsignal(signal.SIGINT) is not handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_programs_own_handler_is_asked():
    seen = []
    former = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with held():
            interrupt()
            called_by_c(interrupt)
        assert seen == [signal.SIGINT]
        deliver()
        assert seen == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, former)


def test_an_ignored_interrupt_stays_ignored():
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held():
            assert called_by_c(interrupt) == NOT_RAISED
        deliver()
    finally:
        signal.signal(signal.SIGINT, former)


def test_other_threads_neither_hold_nor_get_one():
    def work() -> None:
        with held():
            deliver()
            deliver_late()

    with held():
        called_by_c(interrupt)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    with pytest.raises(KeyboardInterrupt):
        deliver()


def test_a_wait_takes_the_second_one():
    with held():
        called_by_c(interrupt)
        deliver_late()
        called_by_c(interrupt)
        with pytest.raises(KeyboardInterrupt):
            deliver_late()
    deliver()


def test_a_wait_for_a_peer_that_is_silent_ends_soon():
    ours, theirs = socket.socketpair()
    stream = Stream(ours, peer="the other end", silence=60.0)

    def wait() -> None:
        interrupt()
        stream.read(1)

    with theirs, held():
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            called_by_c(wait)
        assert time.monotonic() - begin < 30
    stream.close()


def test_a_wait_for_a_peer_that_takes_nothing_ends_soon():
    ours, theirs = socket.socketpair()
    stream = Stream(ours, peer="the other end", silence=60.0)

    def send() -> None:
        interrupt()
        stream.send([bytes(64 << 20)])

    with theirs, held(), pytest.raises(KeyboardInterrupt):
        called_by_c(send)
    stream.close()


def test_a_guarded_callback_hands_what_its_wait_raised_to_its_owner_and_answers_c():
    class Owner:
        def __init__(self) -> None:
            self.errors: list[BaseException] = []

        def fail(self, error: BaseException) -> None:
            self.errors.append(error)

    @guard(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p), -1)
    def answer(address: int) -> int:
        deliver_late()
        return 1

    owner = owners[1] = Owner()
    try:
        with held():
            called_by_c(interrupt)
            assert answer(1) == 1
            called_by_c(interrupt)
            assert answer(1) == -1
    finally:
        del owners[1]
    assert [type(error) for error in owner.errors] == [KeyboardInterrupt]
    deliver()
