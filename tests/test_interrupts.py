"""An interrupt that comes while C runs is raised where it may be, and never lost."""

from __future__ import annotations

import ctypes
import signal
import threading

import pytest

from ringline.ggml.guard import guard, owners
from ringline.interrupts import deliver, edge, held, shelter

NOT_RAISED, RAISED = "not raised", "raised"


def interrupt() -> str:
    """Ctrl-C, now; says whether it was raised here."""
    try:
        signal.raise_signal(signal.SIGINT)
    except KeyboardInterrupt:
        return RAISED
    return NOT_RAISED


@edge
def callback(inner) -> str:
    """A callback of C: its own frame is beyond the reach of any `try`, what it calls is not."""
    if inner is not None:
        return inner()
    signal.raise_signal(signal.SIGINT)
    return NOT_RAISED


@shelter
def reporter() -> str:
    return interrupt()


def test_in_a_callbacks_own_frame_it_waits():
    with held():
        assert callback(None) == NOT_RAISED
    with pytest.raises(KeyboardInterrupt):
        deliver()
    deliver()


def test_in_what_a_callback_calls_it_is_raised_at_once():
    with held():
        assert callback(interrupt) == RAISED
    deliver()


def test_in_a_shelter_and_below_it_waits():
    with held():
        assert callback(reporter) == NOT_RAISED
    with pytest.raises(KeyboardInterrupt):
        deliver()


def test_beside_callbacks_it_is_raised_at_once():
    with held():
        assert interrupt() == RAISED
    deliver()


def test_without_a_call_into_c_nothing_is_different():
    handler = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        callback(None)
    with held(), held():
        assert signal.getsignal(signal.SIGINT) is not handler
    assert signal.getsignal(signal.SIGINT) is handler


def test_the_programs_own_handler_is_asked():
    seen = []
    former = signal.signal(signal.SIGINT, lambda number, frame: seen.append(number))
    try:
        with held():
            callback(interrupt)
            callback(None)
        assert seen == [signal.SIGINT]
        deliver()
        assert seen == [signal.SIGINT] * 2
    finally:
        signal.signal(signal.SIGINT, former)


def test_an_ignored_interrupt_stays_ignored():
    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with held():
            assert callback(interrupt) == NOT_RAISED
        deliver()
    finally:
        signal.signal(signal.SIGINT, former)


def test_other_threads_neither_hold_nor_get_one():
    def work() -> None:
        with held():
            deliver()

    with held():
        callback(None)
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    with pytest.raises(KeyboardInterrupt):
        deliver()


def test_a_guarded_callback_hands_it_to_its_owner_and_answers_c():
    class Owner:
        def __init__(self) -> None:
            self.errors: list[BaseException] = []

        def fail(self, error: BaseException) -> None:
            self.errors.append(error)

    @guard(ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p), -1)
    def answer(address: int) -> int:
        return 1

    owner = owners[1] = Owner()
    try:
        with held():
            callback(None)
            assert answer(1) == -1
            assert answer(1) == 1
    finally:
        del owners[1]
    assert [type(error) for error in owner.errors] == [KeyboardInterrupt]
    deliver()
