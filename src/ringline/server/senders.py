"""Outgoing rendezvous: one worker for each destination, so that no stream waits for a network.

SEND_TENSOR leaves a snapshot here and goes on. A destination is a session of another node; its
worker sends in the order of the snapshots, over one connection. What cannot be sent is reported to
the connection that asked, as the error of a command without reply. Sizes are bytes.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from ringline.errors import CallerError, NetworkError, PeerError, RefusedError
from ringline.server.limits import MOST_LINKS, MOST_QUEUED, MOST_QUEUED_IN_ALL
from ringline.server.log import tell
from ringline.server.peers import PeerLink, Peers

__all__ = ["Senders"]

Bytes = bytes | bytearray | memoryview
_log = logging.getLogger(__name__)
#: seconds to wait for room in a destination's queue; then it is as good as dead.
_ROOM_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class _Parcel:
    ticket: bytes
    data: bytes
    report: Callable[[str], None]
    rest: Sequence[Bytes] = ()  # what is left where the link has taken a part already


class Senders:
    """The workers of one session, by endpoint and destination session."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        #: guards _workers.
        self._lock = threading.Lock()
        self._workers: dict[tuple[str, int], _Worker] = {}

    def send(
        self,
        endpoint: str,
        session: int,
        ticket: bytes,
        data: bytes,
        report: Callable[[str], None],
    ) -> None:
        """Send data under a ticket; returns at once unless the destination's queue is full.

        Args:
            endpoint: where the node is, as the client knows it.
            session: the destination session there.
            ticket: names the transfer to whoever waits for it.
            data: a snapshot; nobody may change it.
            report: gets a sentence where it could not be sent.

        Raises:
            RefusedError: there are too many destinations, or the queue stays full, or all queues
                together hold too much.
        """
        key = (endpoint, session)
        with self._lock:
            queued = sum(worker.queued for worker in self._workers.values())
            if queued > MOST_QUEUED_IN_ALL:
                text = f"{queued} bytes of this session wait to be sent, {MOST_QUEUED_IN_ALL} may"
                raise RefusedError(text, rule="limit-queued")
            worker = self._workers.get(key)
            if worker is None:
                if len(self._workers) >= MOST_LINKS:
                    self._retire_one()
                worker = self._workers[key] = _Worker(self._peers, endpoint, session)
        worker.put(_Parcel(ticket, data, report))

    def _retire_one(self) -> None:
        """Make room: a node that restarts, or a client that comes anew, is a new destination.

        Raises:
            RefusedError: all are at work.
        """
        dead_first = sorted(self._workers.items(), key=lambda entry: entry[1].connected())
        for key, worker in dead_first:
            if worker.retire():
                del self._workers[key]
                return
        text = f"this session sends to {MOST_LINKS} destinations already"
        raise RefusedError(text, rule="limit-destinations")

    def renew(self, endpoint: str, session: int) -> None:
        """Use a new connection for what comes next: the client does not trust this way any more."""
        with self._lock:
            worker = self._workers.get((endpoint, session))
        if worker is not None:
            worker.renew()


class _Worker:
    """Sends parcels to one destination, in order; its thread ends with the process or before."""

    def __init__(self, peers: Peers, endpoint: str, session: int) -> None:
        self._peers = peers
        self._endpoint = endpoint
        self._session = session
        self._link: PeerLink | None = None
        self._doubtful = False
        #: guards queued: bytes that wait.
        self._room = threading.Condition()
        self.queued = 0
        self._parcels: queue.SimpleQueue[_Parcel | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=f"to {endpoint}", daemon=True).start()

    def put(self, parcel: _Parcel) -> None:
        """Send a parcel at once if the kernel takes it, else queue it.

        Waits while the queue holds more than MOST_QUEUED bytes.
        """
        with self._room:
            # Nothing queued: the worker sleeps, and waking it costs more than a small send.
            left = self._try(parcel) if self.queued == 0 else parcel
            if left is None:
                return
            if not self._room.wait_for(lambda: self.queued < MOST_QUEUED, _ROOM_TIMEOUT):
                raise RefusedError(
                    f"{self._endpoint} has taken no data for {_ROOM_TIMEOUT:g} s, "
                    f"{self.queued} bytes wait for it"
                )
            self.queued += max(1, len(parcel.data))
        self._parcels.put(left)

    def connected(self) -> bool:
        """Whether its link is there and the other end has not closed it."""
        with self._room:
            return self._link is not None and self._link.alive()

    def retire(self) -> bool:
        """End the thread and close the link; False, and nothing else, where something is queued."""
        with self._room:
            if self.queued:
                return False
            self.queued = MOST_QUEUED  # whoever still has this worker in hand finds it full
        self._parcels.put(None)
        return True

    def renew(self) -> None:
        """Leave the connection before the next parcel: it may swallow all without an error."""
        self._doubtful = True

    def _work(self) -> None:
        while True:
            parcel = self._parcels.get()
            if parcel is None:
                if self._link is not None:
                    self._link.close()
                return
            try:
                self._deliver(parcel)
            except (CallerError, NetworkError, PeerError) as error:
                text = f"cannot send ticket {parcel.ticket.hex()} to {self._endpoint}: {error}"
                parcel.report(text)  # first: what stands in the log, the next reply tells
                tell(_log, logging.WARNING, "not_sent", "%s", text, target=self._endpoint)
            except Exception as error:
                parcel.report(f"cannot send to {self._endpoint}: {error}")
                _log.exception("a transfer to %s failed by an error of ours", self._endpoint)
            finally:
                with self._room:
                    self.queued -= max(1, len(parcel.data))
                    self._room.notify_all()

    def _try(self, parcel: _Parcel) -> _Parcel | None:
        """Send what can be sent without waiting; what is left is for the worker, None: nothing."""
        link = self._link
        if link is None or self._doubtful or not link.alive():
            return parcel
        try:
            rest = link.try_post(parcel.ticket, parcel.data)
        except NetworkError:
            return parcel  # the worker opens a new connection, or says why it cannot
        if not rest:
            self._peers.sent(self._endpoint, len(parcel.data))
        return replace(parcel, rest=rest) if rest else None

    def _deliver(self, parcel: _Parcel) -> None:
        self._get_through(parcel)
        self._peers.sent(self._endpoint, len(parcel.data))

    def _get_through(self, parcel: _Parcel) -> None:
        link = self._link
        if parcel.rest and link is not None:
            self._send(link, partial(link.finish, parcel.rest))
            return
        doubtful, self._doubtful = self._doubtful, False
        if link is not None and (doubtful or not link.alive()):
            # The other end restarted, or refused something: start anew.
            link.close()
            link = None
        if link is None:
            link = self._link = self._peers.open(self._endpoint, self._session)
        self._send(link, partial(link.post, parcel.ticket, parcel.data))

    def _send(self, link: PeerLink, send: Callable[[], None]) -> None:
        try:
            send()
        except BaseException:
            link.close()
            self._link = None
            raise
