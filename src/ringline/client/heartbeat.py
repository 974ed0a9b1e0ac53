"""A word to each node now and then, so that only a client that has gone is silent.

A node drops a client that has said nothing for long (`ringline serve --idle-timeout`), and a
program that holds a model and waits for its next prompt says nothing by itself. One thread for a
ring looks once in an interval whether anything went to a node since the last look; where nothing
did, it sends a PING there. So a ring at work sends none. A stock server has no PING and drops
nobody.

What the PING brings back belongs to the ring: a node that has gone, or the error of a command
without reply that came before it, is kept for the next check (failures.py).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from ringline import settings
from ringline.client.failures import Failures
from ringline.client.node import Node
from ringline.errors import RemoteError
from ringline.wire.extension import Ping
from ringline.wire.messages import Result

__all__ = ["Heartbeat"]

_log = logging.getLogger(__name__)
#: seconds that close() waits for a PING under way: the connections are closed next, and end it.
_END_TIMEOUT = 1.0


class Heartbeat:
    """The thread; it is there from the beginning to close()."""

    def __init__(self, nodes: Sequence[Node], failures: Failures) -> None:
        self._nodes = [node for node in nodes if node.level]
        self._failures = failures
        self._sent = dict.fromkeys(self._nodes, -1)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)
        if self._nodes:
            self._thread.start()

    def close(self) -> None:
        """Send no more; may be called again."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_END_TIMEOUT)

    def _run(self) -> None:
        while not self._ended.wait(settings.PING_INTERVAL):
            for node in self._nodes:
                self._look(node)

    def _look(self, node: Node) -> None:
        """PING a node to which nothing has gone since the last look."""
        sent, self._sent[node] = self._sent[node], node.traffic.bytes_out
        if sent != node.traffic.bytes_out or node.main.error is not None:
            return
        try:
            node.main.call(Ping.COMMAND, size=Result.LAYOUT.size)
        except RemoteError as error:
            if not self._ended.is_set():
                _log.warning("while waiting: %s", error)
                self._failures.add(error)
        else:
            self._sent[node] = node.traffic.bytes_out
