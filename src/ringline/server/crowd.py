"""Who makes room when too many connections wait for the end of a handshake.

A client needs a round trip or two to finish. So whoever has waited longest goes, at the address
that has most: a flood has to be very fast to push a client out, and one from elsewhere cannot.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import Protocol, TypeVar

from ringline.server.limits import MOST_HALF_OPEN, MOST_HALF_OPEN_HERE
from ringline.server.log import tell

__all__ = ["Waiting", "choose", "too_many"]

_log = logging.getLogger(__name__)


class Waiting(Protocol):
    """A connection that waits: its name for people, and what counts as its address."""

    @property
    def name(self) -> str:
        """Its address and port."""

    @property
    def origin(self) -> str:
        """What counts as its address."""


W = TypeVar("W", bound=Waiting)


def too_many(half_open: Sequence[W], comes_from: str) -> W | None:
    """Who makes room for one more from this origin; None where there is room.

    Args:
        half_open: those in their handshake, in the order of their coming.
        comes_from: origin_of() the one that comes.
    """
    here = [waiting for waiting in half_open if waiting.origin == comes_from]
    if len(here) >= MOST_HALF_OPEN_HERE:
        return choose(here)
    return choose(half_open) if len(half_open) >= MOST_HALF_OPEN else None


def choose(crowd: Sequence[W]) -> W:
    """The one that waits longest at the address that most of a crowd come from; says so."""
    (where, here), *_ = Counter(waiting.origin for waiting in crowd).most_common(1)
    chosen = next(waiting for waiting in crowd if waiting.origin == where)
    text = "%s: closed, it says nothing and %d connections wait, %d of them from there"
    facts = {"client": chosen.name, "waiting": len(crowd), "from_there": here}
    args = (chosen.name, len(crowd), here)
    tell(_log, logging.WARNING, "handshake_evicted", text, *args, **facts)
    return chosen
