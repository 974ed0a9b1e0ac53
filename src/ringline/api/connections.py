"""Connections of HTTP before they have asked anything: a deadline for each, and a bound for all.

uvicorn waits for ever for the first line of a request. Here whoever has not sent a whole header in
time is closed; where there are too many connections, the one that has waited longest without a
request makes room, so that a flood of silent ones does not keep a client out. What comes after the
header has its own deadlines: bodies in app.py, answers in routes/. Times are seconds.
"""

from __future__ import annotations

import asyncio
from typing import Final

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

__all__ = ["HEADER_SECONDS", "MOST_CONNECTIONS", "PatientProtocol"]

#: from the connection, or the first byte of its next request, to the end of the header.
HEADER_SECONDS: Final = 10.0
#: well below the 1,024 descriptors that a process has where nobody asked for more.
MOST_CONNECTIONS: Final = 512


class PatientProtocol(H11Protocol):
    """uvicorn's connection, whose patience has an end."""

    _timer: asyncio.TimerHandle | None = None

    @property
    def waits(self) -> bool:
        """Whether nothing is asked now: no header is complete, no answer under way."""
        # There is no cycle before the first request; uvicorn's annotation does not say so.
        cycle: RequestResponseCycle | None = self.cycle
        return self.conn.their_state is h11.IDLE and (cycle is None or cycle.response_complete)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """One more; the longest silence of all makes room where there are too many."""
        super().connection_made(transport)
        self._begin()
        if len(self.connections) > MOST_CONNECTIONS:
            self._make_room()

    def data_received(self, data: bytes) -> None:
        """A part of a header, or more."""
        super().data_received(data)
        if not self.waits:
            self._end()
        elif self._timer is None:
            self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._end()
        super().connection_lost(exc)

    def _begin(self) -> None:
        self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _make_room(self) -> None:
        ours = (one for one in self.connections if isinstance(one, PatientProtocol))
        waiting = [one for one in ours if one.waits]
        # Those with a timer have never finished a header; the others were clients at least once.
        silent = [one for one in waiting if one._timer is not None]
        oldest = min(silent or waiting, key=_deadline, default=self)
        oldest.transport.close()


def _deadline(connection: PatientProtocol) -> float:
    """When it would be closed anyway; of those kept alive, uvicorn's own timer says it."""
    timer = connection._timer or connection.timeout_keep_alive_task
    return timer.when() if timer is not None else 0.0
