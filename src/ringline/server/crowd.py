"""Those who wait for the end of a handshake: at a selector, with deadlines, bounded in number.

A client needs a round trip or two to finish. So where there are too many whoever has waited longest
goes, at the address that has most: a flood has to be very fast to push a client out, and one from
elsewhere cannot.
"""

from __future__ import annotations

import logging
import selectors
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Generic, Protocol, TypeVar

from ringline.net.deadline import Deadline
from ringline.server.limits import MOST_HALF_OPEN, MOST_HALF_OPEN_HERE
from ringline.server.log import tell

__all__ = ["Crowd", "Waiting", "choose", "too_many"]

_log = logging.getLogger(__name__)


class Waiting(Protocol):
    """A connection that waits."""

    @property
    def sock(self) -> socket.socket:
        """Its socket."""

    @property
    def name(self) -> str:
        """Its address and port."""

    @property
    def deadline(self) -> Deadline:
        """When it has to have finished."""

    @property
    def origin(self) -> str:
        """What counts as its address."""

    @property
    def half_open(self) -> bool:
        """Whether it counts against the bounds."""

    @property
    def missing(self) -> str:
        """What it has not finished, in a word; "": nothing, it is on its way out."""

    def close(self) -> None:
        """Close our copy of its socket."""


W = TypeVar("W", bound=Waiting)


class Crowd(Generic[W]):
    """The connections that wait, in the order of their coming.

    Args:
        selector: its keys carry the function to call.
        failed: is told in a word why a connection did not finish.
    """

    def __init__(self, selector: selectors.BaseSelector, failed: Callable[[str], object]) -> None:
        self._selector = selector
        self._failed = failed
        self._guests: dict[int, W] = {}

    def __iter__(self) -> Iterator[W]:
        """All of them."""
        return iter(self._guests.values())

    def __contains__(self, guest: W) -> bool:
        """Whether it still waits: it may have been closed earlier in the same round."""
        return guest.sock.fileno() in self._guests

    def enter(self, guest: W, hear: Callable[[W], None]) -> None:
        """Let one in, and another one out where there are too many.

        Args:
            guest: who comes.
            hear: called with it when it says something, or has left.
        """
        half_open = [other for other in self if other.half_open]
        crowded = too_many(half_open, guest.origin)
        if crowded is not None:
            self.evict(crowded)
        self._guests[guest.sock.fileno()] = guest
        self._selector.register(guest.sock, selectors.EVENT_READ, partial(hear, guest))

    def evict(self, guest: W) -> None:
        """Close one that has to make room."""
        self._failed("evicted")
        self.drop(guest)

    def lost(self, guest: W, reason: object) -> None:
        """Close one that has left by itself."""
        text = "%s: lost in its handshake (%s)"
        tell(_log, logging.INFO, "handshake_lost", text, guest.name, reason, client=guest.name)
        self._failed("lost")
        self.drop(guest)

    def drop(self, guest: W) -> None:
        """Close our copy of one's socket."""
        self._selector.unregister(guest.sock)
        del self._guests[guest.sock.fileno()]
        guest.close()

    def patience(self) -> float | None:
        """Seconds until the next deadline; None where there is none."""
        times = [guest.deadline.left() for guest in self]
        return min((left for left in times if left is not None), default=None)

    def expire(self) -> None:
        """Close those whose deadline has passed."""
        for guest in [guest for guest in self if guest.deadline.passed()]:
            if guest.missing:
                text = "%s: closed, no whole %s within %g s"
                args = (guest.name, guest.missing, guest.deadline.seconds)
                facts = dict(zip(("client", "stage", "seconds"), args, strict=True))
                tell(_log, logging.WARNING, "handshake_timeout", text, *args, **facts)
                self._failed("timeout")
            self.drop(guest)


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
