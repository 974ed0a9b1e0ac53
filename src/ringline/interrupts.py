"""Ctrl-C while C runs: kept until it can be raised, never lost.

A signal handler in Python runs between two bytecodes of the main thread. While a C library
computes, the next bytecodes are those of one of its callbacks, and no `try` of the callback catches
what the handler raises at the very first: C would go on with garbage as its answer, and the
interrupt would be lost. So while a call into C is `held`, an interrupt that comes at such a place
waits until a `deliver`: in the callback's `try`, or after the call. Anywhere else, above all in a
wait for a node, it is raised at once.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Final, TypeVar

__all__ = ["deliver", "edge", "held", "shelter"]

F = TypeVar("F", bound=Callable[..., object])
Handler = Callable[[int, FrameType | None], object]

_NUMBER: Final = signal.SIGINT
#: nothing may be raised in these, but in what they call.
_edges: set[CodeType] = set()
#: nothing may be raised in these, nor in what they call.
_shelters: set[CodeType] = set()
#: the handlers that have yet to hear of an interrupt; the main thread's alone.
_waiting: list[Handler] = []


def edge(function: F) -> F:
    """Mark a callback of C that catches what the functions raise that it calls."""
    _edges.add(function.__code__)
    return function


def shelter(function: F) -> F:
    """Mark a function that must run to its end: it is called where nobody catches."""
    _shelters.add(function.__code__)
    return function


def deliver() -> None:
    """Hand an interrupt that waits to its handler, which by default raises KeyboardInterrupt."""
    if _waiting and threading.current_thread() is threading.main_thread():
        handler = _waiting[-1]
        _waiting.clear()
        handler(_NUMBER, None)


class held:
    """While the block runs, an interrupt is not raised in the callbacks' own frames.

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
        if _may_raise(frame):
            self._handler(number, frame)
        else:
            _waiting.append(self._handler)


def _may_raise(frame: FrameType | None) -> bool:
    """Whether there is a `try` between this frame and C."""
    if frame is not None and frame.f_code in _edges:
        return False
    while frame is not None and frame.f_code not in _edges:
        if frame.f_code in _shelters:
            return False
        frame = frame.f_back
    return True
