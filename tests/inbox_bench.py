"""An inbox for the tests, without a socket: threads play the connections of a session."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from ringline.errors import TransferError
from ringline.net.deadline import Deadline
from ringline.server.inbox import Inbox
from tests.peers.processes import patience
from tests.server_client import wait_for

TICKET, OTHER = b"1" * 16, b"2" * 16
DATA = bytes(range(1, 9))
EMPTY = bytes(8)


class Told(Deadline):
    """A deadline that passes when the test says so, not before."""

    def __init__(self) -> None:
        super().__init__(0.01)
        self.over = False

    def passed(self) -> bool:
        return self.over


class Bench:
    """An inbox, the place of a tensor, and threads that play its connections."""

    def __init__(self, threads: ThreadPoolExecutor, **limits: int) -> None:
        self.inbox = Inbox(**limits)
        self.memory = bytearray(8)
        self._threads = threads

    def receive(
        self,
        ticket: bytes = TICKET,
        *,
        size: int = 8,
        place: bool = True,
        seconds: float = 60,
        gone: Callable[[], bool] = lambda: False,
        deadline: Deadline | None = None,
    ) -> bytearray | None:
        """What RECV_TENSOR does; into `memory` unless `place` is False."""
        target = memoryview(self.memory)[:size] if place else None
        deadline = deadline or Deadline(patience(seconds))
        return self.inbox.receive(ticket, size, target, deadline=deadline, gone=gone)

    def receiving(self, ticket: bytes = TICKET, **more: object) -> Future[bytearray | None]:
        """The same in a thread, until it waits (or has ended)."""
        future = self._threads.submit(self.receive, ticket, **more)
        wait_for("the RECV", lambda: future.done() or self.claimed(ticket))
        return future

    def claimed(self, ticket: bytes) -> bool:
        entry = self.inbox._entries.get(ticket)
        return entry is not None and entry.claimed

    def offer(self, ticket: bytes, size: int, seconds: float = 60) -> memoryview | None:
        return self.inbox.offer(ticket, size, Deadline(patience(seconds)))

    def deliver(self, ticket: bytes = TICKET, data: bytes = DATA) -> bool:
        """What a peer's connection does; False where the data are not wanted."""
        place = self.offer(ticket, len(data))
        if place is not None:
            place[:] = data
            self.inbox.arrived(ticket)
        return place is not None

    def delivering(self, ticket: bytes, data: bytes = DATA) -> Future[bool]:
        return self._threads.submit(self.deliver, ticket, data)


def result(future: Future):
    return future.result(patience(30))


def assert_fails(future: Future, cause: str) -> None:
    with pytest.raises(TransferError, match=cause) as failure:
        result(future)
    assert TICKET.hex() in str(failure.value)
