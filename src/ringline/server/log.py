"""Where the node's talk goes: stderr, one line an event, as text or as JSON.

The gatekeeper and its session processes write to the same stderr, each line in one write. Text is
for people: who speaks, a level where it matters, a sentence. JSON is for programs: `time` (UTC),
`level`, `event` (a word that does not change), `process`, `session` and `client` where there are
some, `message` (the same sentence), and the event's own facts. Neither ever holds tensor data.

What a client says may stand in a sentence, so control characters are escaped: nobody can write a
line of his own into the log. What a flood repeats is counted instead of written.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Mapping
from typing import Final

from ringline import settings

__all__ = ["LOG_FORMATS", "log_to_stderr", "speak_as", "tell"]

LOG_FORMATS: Final = ("text", "json")
#: strangers can cause these as fast as they like: of each so many a second are written.
_REPEATABLE: Final = frozenset(
    {
        "handshake_evicted",
        "handshake_timeout",
        "not_a_client",
        "plain_client",
        "tls_refused",
        "turned_away",
    }
)
_MOST_REPEATS: Final = 10
_ESCAPES: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}


class _Speaker:
    """Who this process is in its log; session processes change theirs."""

    name = "ringline serve"
    facts: Mapping[str, object] = {}


def tell(
    log: logging.Logger, level: int, event: str, text: str, /, *args: object, **facts: object
) -> None:
    """Log an event.

    Args:
        log: the logger of the module that saw it.
        level: of the logging module.
        event: what kind of event, in one word that programs may rely on.
        text: a sentence for people, with the places of `args`.
        args: as for logging.
        facts: what a program may want to know of it: names, numbers, sizes; never data.
    """
    log.log(level, text, *args, extra={"event": event, "facts": facts})


class _TextFormatter(logging.Formatter):
    """Puts the name of this process before each message; `banner` records keep their lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        text = record.message
        if not getattr(record, "banner", False):
            text = text.translate(_ESCAPES)
        return f"{_Speaker.name}: {level}{text}"


class _JsonFormatter(logging.Formatter):
    """One JSON object a line; a traceback is a string in it."""

    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        facts: dict[str, object] = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": getattr(record, "event", "message"),
            "process": _Speaker.name,
            **_Speaker.facts,
            "message": record.getMessage(),
            **getattr(record, "facts", {}),
        }
        if record.exc_info:
            facts["traceback"] = self.formatException(record.exc_info)
        return json.dumps(facts, default=str)


class _Calm(logging.Filter):
    """Lets a few of each repeatable event through a second, and says how many it kept back."""

    def __init__(self) -> None:
        super().__init__()
        #: event -> when its second began, how many came in it.
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        event = getattr(record, "event", "")
        if event not in _REPEATABLE:
            return True
        began, count = self._seen.get(event, (0.0, 0))
        if record.created - began >= 1.0:
            kept_back = count - _MOST_REPEATS
            if kept_back > 0:
                record.msg = f"{record.getMessage()} (and {kept_back} more like it before)"
                record.args = ()
            began, count = record.created, 0
        self._seen[event] = began, count + 1
        return count < _MOST_REPEATS


def log_to_stderr(log_format: str = "text") -> None:
    """Send ringline's log records to stderr; RINGLINE_DEBUG lets debug messages through."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        _JsonFormatter() if log_format == "json" else _TextFormatter("%(message)s")
    )
    handler.addFilter(_Calm())
    logger = logging.getLogger("ringline")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(logging.DEBUG if settings.debug_level() else logging.INFO)
    # libllama lists all metadata of each vocabulary that it loads.
    library = logging.getLogger("ringline.llama")
    library.setLevel(logging.NOTSET if settings.debug_level() else logging.WARNING)


def speak_as(who: str, **facts: object) -> None:
    """Change the name of this process in its log, and what all its events have in common."""
    _Speaker.name = who
    _Speaker.facts = facts
