"""What libllama and ggml say, as Python log records, and the errors among it kept for exceptions.

The C library logs through one callback for the whole process. Here its messages go to the logger
`ringline.llama`, which is silent until a program configures logging. A failed call returns NULL or
a number; the reason stands only in the log, so the errors of one thread can be collected while a
call runs. Knows no ctypes: the callback itself is made in library.py.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

__all__ = [
    "LIBRARY_LOGGER",
    "collected_errors",
    "postpone",
    "quote",
    "raise_postponed",
    "receive",
]

LIBRARY_LOGGER = logging.getLogger("ringline.llama")
# Without a handler Python would print warnings to stderr by itself.
LIBRARY_LOGGER.addHandler(logging.NullHandler())

#: enum ggml_log_level (ggml.h) -> level of logging; CONT continues the message before it.
LEVELS = {
    0: logging.INFO,
    1: logging.DEBUG,
    2: logging.INFO,
    3: logging.WARNING,
    4: logging.ERROR,
}
CONT = 5

#: what libllama says after it said why: no use in a sentence that has the reason.
_GENERIC = re.compile(r"failed to (load model|decode, ret|initialize batch|encode, ret)")
#: warns of what we do on purpose: another pooling than the model's file names, or any at all.
_MEANT = re.compile(r"model default pooling_type is")
#: `function: ` in front of a message, once or twice.
_ORIGIN = re.compile(r"^(?:[A-Za-z_][\w:]*: )+")
_LEAD = re.compile(r"^(error loading model|failed to initialize the context): ")


@dataclass(slots=True)
class _Stream:
    """One thread's messages: the unfinished one, and the lists that collect errors.

    `postponed` is a Ctrl-C that came while a message was being handled, inside a call of C.
    """

    level: int = logging.INFO
    parts: list[str] = field(default_factory=list)
    collectors: list[list[str]] = field(default_factory=list)
    postponed: BaseException | None = None


class _Local(threading.local):
    """A stream for each thread, so that two loads at once do not mix their lines."""

    def __init__(self) -> None:
        self.stream = _Stream()


_local = _Local()


def receive(level: int, text: str) -> None:
    """Take one piece from the library's callback; a message ends with its line feed.

    Args:
        level: enum ggml_log_level.
        text: the piece; progress dots and tables come in several, the later ones at level CONT.
    """
    stream = _local.stream
    if level != CONT:
        _finish(stream)
        stream.level = LEVELS.get(level, logging.INFO)
    stream.parts.append(text)
    if text.endswith("\n"):
        _finish(stream)


def _finish(stream: _Stream) -> None:
    message = "".join(stream.parts).strip("\n")
    stream.parts.clear()
    if not message.strip():
        return
    if stream.level >= logging.ERROR:
        for collector in stream.collectors:
            collector.append(message)
    level = logging.DEBUG if _MEANT.search(message) else stream.level
    LIBRARY_LOGGER.log(level, "%s", message)


@contextmanager
def collected_errors() -> Iterator[list[str]]:
    """Collect the error messages that the library logs on this thread while the block runs."""
    collector: list[str] = []
    stream = _local.stream
    stream.collectors.append(collector)
    try:
        yield collector
        _finish(stream)
    finally:
        # By identity: two empty lists are equal.
        stream.collectors = [other for other in stream.collectors if other is not collector]


def postpone(error: BaseException) -> None:
    """Keep what must not be raised into C, for raise_postponed() after the call."""
    _local.stream.postponed = error


def raise_postponed() -> None:
    """Raise what came on this thread while the library was logging."""
    error, _local.stream.postponed = _local.stream.postponed, None
    if error is not None:
        raise error


def quote(errors: Sequence[str]) -> str:
    """Pick the last errors that say why, without the names of C functions, as one line."""
    telling = [error for error in errors if not _GENERIC.search(error)] or list(errors)
    return "; ".join(_plain(error) for error in telling[-2:]) or "libllama gave no reason"


def _plain(error: str) -> str:
    line = _ORIGIN.sub("", _LEAD.sub("", _ORIGIN.sub("", " ".join(error.split()))))
    return line.replace("std::bad_alloc", "there is not enough memory")
