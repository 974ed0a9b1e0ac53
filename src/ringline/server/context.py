"""What a handler may use: the session, and what this connection has of its own. No socket.

A session is shared by the threads of its connections; a context belongs to one thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from ringline.errors import RefusedError
from ringline.ggml.devices import Backend, Device
from ringline.ggml.layout import Status
from ringline.server.board import Board
from ringline.server.buffers import Registry
from ringline.server.checked import CheckedStructures
from ringline.server.execution import ExecutionLock, LockFiles
from ringline.server.graph_room import GraphRoom
from ringline.server.graphs import LaidOut, StoredGraph
from ringline.server.inbox import Inbox
from ringline.server.options import DeviceInfo, ServeOptions
from ringline.server.peers import Peers
from ringline.server.policy import PeerPolicy
from ringline.server.rows import RowTables
from ringline.server.sampling import Samplers
from ringline.server.senders import Senders
from ringline.server.tally import Counter, Tally
from ringline.server.vocabulary import SessionVocabulary

__all__ = ["Context", "Node", "Session"]


@dataclass(frozen=True, slots=True)
class Node:
    """What the gatekeeper knows and its forks inherit.

    Attributes:
        options: what the person chose.
        devices: what the node lends, as it was at start; locks: one per device.
        policy: whom the node may dial.
    """

    options: ServeOptions
    devices: tuple[DeviceInfo, ...]
    locks: tuple[LockFiles, ...]
    policy: PeerPolicy


@dataclass(frozen=True, slots=True)
class Session:
    """Everything that one client owns on this node.

    Attributes:
        node: the node; devices: its devices, opened in this process.
        number: the session's id, a u32; secret: what ATTACH must name.
        client: the client's address, for people.
        board: where the gatekeeper reads what the session was doing when it died.
        vocabulary: of the client's model, for samplers that need the text of tokens.
        checked: structures of graphs that passed all checks.
        graph_room: what its stored graphs take.
        tally: counts what the session costs.
    """

    node: Node
    devices: tuple[Device, ...]
    number: int
    secret: bytes
    client: str
    board: Board
    registry: Registry
    peers: Peers
    senders: Senders
    inbox: Inbox
    tables: RowTables = field(default_factory=RowTables)
    vocabulary: SessionVocabulary = field(default_factory=SessionVocabulary)
    checked: CheckedStructures = field(default_factory=CheckedStructures)
    graph_room: GraphRoom = field(default_factory=GraphRoom)
    tally: Tally = field(default_factory=Tally)


@dataclass(slots=True)
class Context:
    """One connection's view of its session.

    Attributes:
        session: shared with other threads.
        visitor: this connection's number in the session.
        graphs: the stored graph of each device, by its index.
        laid_out: the last graphs, by the bytes that they came in.
        samplers: its samplers, and the rows that it keeps for them.
        reports: failures of what a worker was to send after its command was done.
        gone: whether the other end has left; set by the connection.
    """

    session: Session
    visitor: int
    graphs: dict[int, StoredGraph] = field(default_factory=dict)
    laid_out: LaidOut = field(default_factory=LaidOut)
    samplers: Samplers = field(default_factory=Samplers)
    reports: list[str] = field(default_factory=list)
    gone: Callable[[], bool] = lambda: False
    _backends: dict[int, Backend] = field(default_factory=dict)
    _turns: dict[int, ExecutionLock] = field(default_factory=dict)

    def reporter(self) -> Callable[[str], None]:
        """For a worker that finishes a command later, to say in any thread that this failed.

        It is heard until the client has been told of an error: then the client decodes the step
        again, and what else had failed of the old one would only spoil the new one.
        """
        return self.reports.append

    def take_reports(self) -> list[str]:
        """The reports so far, for the client; those who still report on the same are not heard."""
        reports, self.reports = self.reports, []
        return reports

    @property
    def registry(self) -> Registry:
        """The session's buffers."""
        return self.session.registry

    def last_token(self, sampler: int) -> int | None:
        """The token that a sampler of this connection sampled last; None where there is none."""
        return self.samplers.last_token(sampler)

    def device(self, index: int) -> Device:
        """A device of this node.

        Raises:
            RefusedError: there is none with this index.
        """
        devices = self.session.devices
        if index >= len(devices):
            raise RefusedError(f"there is no device {index}, this node lends {len(devices)}")
        return devices[index]

    def turn(self, index: int) -> ExecutionLock:
        """This thread's turn on a device: hold it around ggml's work, never around the network."""
        turn = self._turns.get(index)
        if turn is None:
            waited = partial(self.session.tally.add, Counter.LOCK_WAIT, label=str(index))
            turn = self._turns[index] = ExecutionLock(self.session.node.locks[index], waited=waited)
        return turn

    def compute(self, index: int, graph: StoredGraph) -> None:
        """Compute a graph and wait for the result.

        Raises:
            RefusedError: the device was busy for too long, or ggml reports a failure.
            LibraryError: the device cannot be started.
        """
        backend = self._backend(index)
        with self.turn(index):
            began = time.perf_counter_ns()
            status = backend.compute(graph.graph.address)
            took = time.perf_counter_ns() - began
        self.session.tally.add(Counter.BUSY, took, str(index))
        self.session.tally.add(Counter.COMPUTED, 1, str(index))
        if status is not Status.SUCCESS:
            device = self.device(index)
            raise RefusedError(f"device {device.name} could not compute the graph ({status.name})")

    def close(self) -> None:
        """Give back what this thread has of its own; may be called again."""
        self.graphs.clear()
        self.laid_out.clear()
        self.samplers.close()
        self.session.vocabulary.leave(self.visitor)
        for backend in self._backends.values():
            backend.close()
        for turn in self._turns.values():
            turn.close()
        self._backends.clear()
        self._turns.clear()

    def _backend(self, index: int) -> Backend:
        """A backend of this thread's own: two computations on one backend corrupt each other."""
        backend = self._backends.get(index)
        if backend is None:
            device = self.device(index)
            backend = self._backends[index] = device.open(self.session.node.options.n_threads)
        return backend
