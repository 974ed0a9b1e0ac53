"""Where the node's talk goes: stderr, one line a message, with the session it is about."""

from __future__ import annotations

import logging
import sys

from ringline import settings

__all__ = ["log_to_stderr", "speak_as"]


class _Formatter(logging.Formatter):
    """Puts the name of this process before each message; session processes change theirs."""

    who = "ringline serve"

    def format(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return f"{self.who}: {level}{super().format(record)}"


_formatter = _Formatter("%(message)s")


def log_to_stderr() -> None:
    """Send ringline's log records to stderr; RINGLINE_DEBUG lets debug messages through."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_formatter)
    logger = logging.getLogger("ringline")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if settings.debug_level() else logging.INFO)
    # libllama lists all metadata of each vocabulary that it loads.
    library = logging.getLogger("ringline.llama")
    library.setLevel(logging.NOTSET if settings.debug_level() else logging.WARNING)


def speak_as(who: str) -> None:
    """Change the name that stands before this process's messages."""
    _formatter.who = who
