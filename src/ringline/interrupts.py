"""Ctrl-C while C runs: kept until it can be raised, never lost.

A signal handler in Python runs between two bytecodes of the main thread. While a C library
computes, these are the bytecodes of its callbacks, and an exception there does harm: before the
callback's `try` it is lost and C gets garbage for an answer; behind it, C may end the process over
the answer that stands for "failed", half a message may have been sent, a lock may stay taken. So
while a call into C is `held`, an interrupt that comes in a callback waits. It is raised by
`deliver` after the call, or in the `try` of a callback that may well say no; and where the call
takes long because a node does not answer, by `deliver_late`, in the wait for that node.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final, TypeVar

__all__ = ["LOOK", "callback", "deliver", "deliver_late", "held"]

F = TypeVar("F", bound=Callable[..., object])
Handler = Callable[[int, FrameType | None], object]

#: seconds between two looks for an interrupt in a long wait.
LOOK: Final = 0.5
#: seconds that a step under way gets to end by itself, so that the ring stays of use.
_GRACE: Final = 1.0
_NUMBER: Final = signal.SIGINT
#: nothing may be raised in these, nor in what they call.
_callbacks: set[CodeType] = set()
#: the handlers that have yet to hear of an interrupt, and when it came; the main thread's alone.
_waiting: list[tuple[Handler, float]] = []


def callback(function: F) -> F:
    """Mark a function that C calls."""
    _callbacks.add(function.__code__)
    return function


def deliver() -> None:
    """Hand an interrupt that waits to its handler, which by default raises KeyboardInterrupt."""
    if _waiting and threading.current_thread() is threading.main_thread():
        handler, _ = _waiting[-1]
        _waiting.clear()
        handler(_NUMBER, None)


def deliver_late() -> None:
    """In a wait for another process: deliver an interrupt that is a second old, or the second one.

    Call it every LOOK seconds where an exception is as good as a lost connection.
    """
    if len(_waiting) > 1 or (_waiting and time.monotonic() - _waiting[0][1] >= _GRACE):
        deliver()


class held:
    """While the block runs, an interrupt is not raised in callbacks.

    What it kept is raised by the next `deliver`, which is the caller's to call: after the block,
    when what C returned is safe. In other threads than the main one no handler runs anyway.
    """

    def __enter__(self) -> None:
        self._handler: Handler | None = None
        if threading.current_thread() is threading.main_thread():
            handler = signal.getsignal(_NUMBER)
            if callable(handler) and not isinstance(handler, _Keeper):
                self._handler = handler
                signal.signal(_NUMBER, _Keeper(handler))

    def __exit__(self, *exception: object) -> None:
        if self._handler is not None:
            signal.signal(_NUMBER, self._handler)


class _Keeper:
    """Stands in for a handler, and calls it where it may raise."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if _beneath_c(frame):
            _waiting.append((self._handler, time.monotonic()))
        else:
            self._handler(number, frame)


def _beneath_c(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _callbacks:
        frame = frame.f_back
    return frame is not None
