"""What every process that the gatekeeper forks does first: become independent of it."""

from __future__ import annotations

import os
import signal
from typing import Final

__all__ = ["STOP_SIGNALS", "settle_in"]

#: what asks a node to end; a forked process does what these do by default.
STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


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
