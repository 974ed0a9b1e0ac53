"""Lanes: each llama_context has connections of its own, so no context waits behind another's graph.

A lane is one connection to every node, attached to the session that the ring has there: buffers are
shared in the session, the stored graph is the connection's. A stock server serves one connection at
a time; all lanes share it. Which lane a call from libllama belongs to is known by the thread that
makes it: a thread binds its lane, then creates, uses and frees its context.

A lane also remembers the tickets of the step under way. When a reply is long in coming it looks
whether a node has gone or a transfer has failed, and voids the tickets that nobody will serve, so
that the nodes that wait for them say so at once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ringline.client.connection import Connection
from ringline.client.kept import KeptRows, UnreadRows
from ringline.client.replies import Expected
from ringline.client.thin import LEVEL
from ringline.errors import NetworkError, PeerError, TransferError
from ringline.wire.extension import PeerData, Ping
from ringline.wire.messages import Result
from ringline.wire.thin import next_ticket

if TYPE_CHECKING:
    from ringline.client.node import Node

__all__ = ["Lane", "Ticket", "current"]

_log = logging.getLogger(__name__)

#: seconds of waiting until the other nodes are asked whether a transfer has failed.
_PATIENCE: Final = 2.0
#: bytes of a ticket.
_TICKET: Final = 16
_bound = threading.local()


@dataclass(frozen=True, slots=True)
class Ticket:
    """A transfer under way: from node to node, under a number that is used once."""

    number: bytes
    source: Node
    target: Node


def current() -> Lane | None:
    """The lane that this thread has bound; None: the ring's main lane."""
    return getattr(_bound, "lane", None)


class Lane:
    """A connection to every node of a ring; a context manager."""

    def __init__(self, nodes: Sequence[Node], connections: Sequence[Connection]) -> None:
        """Take connections that are open already, one for each node, in order."""
        self.tickets: list[Ticket] = []
        #: the rows of logits that stay on their node in this decode; None: none may.
        self.kept: KeptRows | UnreadRows | None = None
        self._chains: dict[tuple[Node, Node], bytes] = {}
        self._by_node = dict(zip(nodes, connections, strict=True))
        self._main = {node: node.main for node in nodes}
        self._failures: list[TransferError] = []
        self._probes: dict[Node, Expected] = {}
        for node, connection in self._by_node.items():
            if connection is not node.main:
                connection.replies.watch = functools.partial(self._watch, busy=node)

    @classmethod
    def attach(cls, nodes: Sequence[Node], *, encode: bool = False) -> Lane:
        """Open a further connection to every ringline node; share the one to a stock server.

        Args:
            nodes: of the ring.
            encode: whether steps go through the codec of level 5 where the node has it.

        Raises:
            NetworkError, PeerError: a node cannot be reached, or has no room for it.
        """
        opened: list[Connection] = []
        try:
            for node in nodes:
                opened.append(node.attach() if node.level else node.main)
                if encode and node.level >= LEVEL:
                    opened[-1].encode_steps()
        except BaseException:
            for connection in opened:
                if connection not in [node.main for node in nodes]:
                    connection.close()
            raise
        return cls(nodes, opened)

    def to(self, node: Node) -> Connection:
        """This lane's connection to a node."""
        return self._by_node.get(node, node.main)

    @contextlib.contextmanager
    def bound(self) -> Iterator[None]:
        """Everything that this thread asks of the nodes goes over this lane."""
        before = current()
        _bound.lane = self
        try:
            yield
        finally:
            _bound.lane = before

    def ticket(self, source: Node, target: Node) -> Ticket:
        """A ticket for a transfer; who does not know the last one of this way cannot guess it."""
        last = self._chains.get((source, target))
        number = os.urandom(_TICKET) if last is None else next_ticket(last)
        self._chains[source, target] = number
        ticket = Ticket(number, source, target)
        self.tickets.append(ticket)
        return ticket

    def fail(self, error: TransferError) -> None:
        """A transfer of the step under way failed; check() raises it."""
        self._failures.append(error)

    def check(self) -> None:
        """The step is over: forget its tickets, or raise what went wrong with one.

        Before it raises, every node has executed or dropped all that it was sent, so that the step
        can be decoded again.

        Raises:
            TransferError: a transfer failed. NetworkError, PeerError: a node failed meanwhile.
        """
        tickets, self.tickets = self.tickets, []
        failures, self._failures = self._failures, []
        if not failures:
            for ticket in tickets:
                ticket.source.edge(ticket.target).worked()
            return
        failures += self._settle(tickets)
        for source, target in _edges_to_blame(tickets, failures):
            source.edge(target).failed()
        raise failures[0]

    def waiting(self) -> list[str]:
        """Who owes this lane a reply now, and to which command; any thread may ask."""
        owing = []
        for node, connection in self._by_node.items():
            with connection.lock:
                commands = [expected.command.name for expected in connection.replies.queue]
            if commands:
                owing.append(f"node {node.endpoint} ({commands[0]})")
        return owing

    def close(self) -> None:
        """Close the connections that are this lane's own; may be called again."""
        for node, connection in self._by_node.items():
            if connection is not node.main:
                connection.close()

    def __enter__(self) -> Lane:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _settle(self, tickets: Sequence[Ticket]) -> list[TransferError]:
        """Void what is left and wait until all nodes are idle; what else they say has failed."""
        self._void(tickets)
        found: list[TransferError] = []
        for node, connection in self._by_node.items():
            if not node.level:
                continue
            try:
                connection.drain()
            except TransferError as error:
                found.append(error)
            try:
                connection.call(Ping.COMMAND, size=Result.LAYOUT.size)
            except TransferError as error:
                found.append(error)
        probes, self._probes = self._probes, {}  # all answered: a PING came after them
        return found + [p.error for p in probes.values() if isinstance(p.error, TransferError)]

    def _void(self, tickets: Sequence[Ticket]) -> None:
        """Tell the nodes that wait for these tickets that nothing will come."""
        for ticket in tickets:
            with contextlib.suppress(NetworkError, PeerError):
                main = self._main[ticket.target]
                main.post(PeerData.COMMAND, PeerData(ticket.number, 0).pack())
                main.flush()

    def _watch(self, waited: float, *, busy: Node) -> None:
        """A reply of node `busy` is long in coming: has another node gone, has a transfer failed?

        Raises:
            NetworkError, PeerError: a node has failed.
        """
        for node, connection in self._by_node.items():
            if node is busy or not node.level:
                continue
            if not connection.alive():
                connection.call(Ping.COMMAND, size=Result.LAYOUT.size)  # raises what has happened
            if waited >= _PATIENCE and self.tickets:
                self._probe(node, connection)

    def _probe(self, node: Node, connection: Connection) -> None:
        """Ask a node, without waiting, for errors of commands that have no reply."""
        probe = self._probes.get(node)
        if probe is None:
            target = memoryview(bytearray(Result.LAYOUT.size))
            self._probes[node] = connection.ask(Ping.COMMAND, target=target)
            connection.flush()
            return
        connection.replies.take_some()
        if not probe.finished:
            return
        del self._probes[node]
        if isinstance(probe.error, TransferError):
            _log.warning("%s", probe.error)
            self.fail(probe.error)
            self._void(self.tickets)
        elif probe.error is not None:
            raise probe.error


def _edges_to_blame(
    tickets: Sequence[Ticket], failures: Sequence[TransferError]
) -> set[tuple[Node, Node]]:
    """Where a failed step went wrong first: the edges that take the hub for a while."""
    said: dict[str, str] = {}
    for error in failures:
        said[error.peer] = said.get(error.peer, "") + error.cause

    def names(node: Node, ticket: Ticket) -> bool:
        return ticket.number.hex() in said.get(str(node.endpoint), "")

    unsent = [ticket for ticket in tickets if names(ticket.source, ticket)]
    starved = {ticket.target for ticket in tickets if names(ticket.target, ticket)}
    # A node that got nothing has nothing to send: only the first edge of a chain is to blame.
    first = [t for t in tickets if t.target in starved and t.source not in starved]
    return {(ticket.source, ticket.target) for ticket in unsent or first or tickets}
