"""What the nodes say of our sessions there, for whoever asks: never on the way of a step.

A thread of its own asks each node over a connection of its own, attached to our session, so that no
decode waits behind the question and nothing of it is counted as the ring's traffic. It asks when
somebody wants to know, at most once in an interval; look() gives the last answers and never waits.
A ring whose metrics nobody reads opens no connection here.

A stock server serves one connection, which the ring has: it is asked nothing, and its sessions'
numbers stay unknown. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from ringline.client.connection import Connection
from ringline.client.node import Node
from ringline.errors import RemoteError
from ringline.wire.commands import Command
from ringline.wire.counters import MOST_COUNTERS, ReadCounters, SessionCounters
from ringline.wire.extension import Feature
from ringline.wire.messages import GetDeviceMemory

__all__ = ["Health", "Observer", "Sight"]

_log = logging.getLogger(__name__)
#: seconds between two questions to a node.
_INTERVAL: Final = 1.0
#: seconds that a node has for an answer: it may be computing with all its threads.
_PATIENCE: Final = 10.0
#: seconds that close() waits for a question under way.
_END_TIMEOUT: Final = 1.0


class Health(StrEnum):
    """How a node is: well, gone, or it cannot say what our session costs."""

    OK = "ok"
    LOST = "lost"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Sight:
    """A node as it was seen last.

    Attributes:
        health: how it is; why: the sentence, where it is lost.
        counters: of our session; None: none have come yet.
        memory: free and total bytes of each of its devices; empty: none have come yet.
    """

    health: Health
    why: str = ""
    counters: SessionCounters | None = None
    memory: tuple[tuple[int, int], ...] = ()


class Observer:
    """The thread begins with the first look()."""

    def __init__(self, nodes: Sequence[Node]) -> None:
        self._nodes = list(nodes)
        self._sights = {node: Sight(_first_health(node)) for node in nodes}
        self._connections: dict[Node, Connection] = {}
        self._wanted = threading.Event()
        self._ended = threading.Event()
        #: guards _thread.
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def look(self) -> Mapping[Node, Sight]:
        """The nodes as they were seen last; lets them be asked again, and waits for nothing."""
        with self._lock:
            if self._thread is None and self._nodes and not self._ended.is_set():
                self._thread = threading.Thread(target=self._run, name="observer", daemon=True)
                self._thread.start()
        self._wanted.set()
        return dict(self._sights)

    def close(self) -> None:
        """Ask no more; may be called again."""
        with self._lock:
            self._ended.set()
            thread = self._thread
        self._wanted.set()
        if thread is not None:
            thread.join(_END_TIMEOUT)
        for connection in list(self._connections.values()):
            connection.close()

    def _run(self) -> None:
        while True:
            self._wanted.wait()
            self._wanted.clear()
            for node in self._nodes:
                if self._ended.is_set():
                    return
                self._see(node)
            self._ended.wait(_INTERVAL)

    def _see(self, node: Node) -> None:
        seen = self._sights[node]
        if seen.health is Health.LOST:
            return
        why = f"node {node.endpoint}: it has closed the connection"
        try:
            if node.greeting.features & Feature.COUNTERS:
                self._sights[node] = self._ask(node)
        except RemoteError as error:
            # It may only be busy, or have no room for one more connection.
            _log.debug("metrics: %s", error)
            self._drop(node)
            why = str(error)
        except Exception:
            _log.exception("metrics: a question to node %s failed by an error of ours", node)
        if not node.main.alive() and not self._ended.is_set():
            why = str(node.main.error or why)
            self._sights[node] = replace(self._sights[node], health=Health.LOST, why=why)

    def _ask(self, node: Node) -> Sight:
        connection = self._connections.get(node)
        if connection is None:
            connection = self._connections[node] = node.attach_apart(silence=_PATIENCE)
        raw = connection.call(ReadCounters.COMMAND, size=None, most=MOST_COUNTERS)
        counters = SessionCounters.unpack(raw)
        return Sight(
            Health.OK,
            counters=counters,
            memory=tuple(_memory(connection, index) for index in range(len(node.devices))),
        )

    def _drop(self, node: Node) -> None:
        connection = self._connections.pop(node, None)
        if connection is not None:
            with contextlib.suppress(RemoteError):
                connection.close()


def _first_health(node: Node) -> Health:
    return Health.OK if node.greeting.features & Feature.COUNTERS else Health.UNKNOWN


def _memory(connection: Connection, device: int) -> tuple[int, int]:
    size = GetDeviceMemory.Reply.LAYOUT.size
    raw = connection.call(Command.GET_DEVICE_MEMORY, GetDeviceMemory(device).pack(), size=size)
    reply = GetDeviceMemory.Reply.unpack(raw)
    return reply.free, reply.total
