"""What every process that the gatekeeper forks does first: become independent of it."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

__all__ = ["STOP_SIGNALS", "go_first", "settle_in"]

#: what asks a node to end; a forked process does what these do by default.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
_OOM_SCORE: Final = Path("/proc/self/oom_score_adj")
#: thousandths of the machine's memory that a session counts as if it held them.
_GUEST: Final = 500
_MOST_SCORE: Final = 1000


def settle_in() -> None:
    """Give up what the gatekeeper had set up for itself: signals, standard input and output."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    # Ctrl-C reaches the whole process group; the gatekeeper decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.dup2(nothing, 1)  # standard output belongs to the banner; what libraries print is dropped
    os.close(nothing)


def go_first() -> None:
    """Where memory runs out, let the kernel end this process before the gatekeeper and others.

    Among sessions it then chooses the one that holds most.
    """
    with contextlib.suppress(OSError):  # a read-only /proc
        given = int(_OOM_SCORE.read_text("ascii"))
        _OOM_SCORE.write_text(str(min(_MOST_SCORE, given + _GUEST)), "ascii")
