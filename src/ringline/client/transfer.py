"""How a hidden state gets from one node to another: copy, rendezvous, direct or hub.

    same node                  COPY_TENSOR                 it never leaves the node
    both ends have level 4     SEND_TENSOR, RECV_TENSOR    node to node, nobody waits
    both ends have level 3     COPY_TENSOR_TO              node to node, we wait for "done"
    anything else              GET_TENSOR, SET_TENSOR      through this process

Rendezvous keeps the order by construction: the source reads the tensor where SEND stands in its
stream, the destination writes it where RECV stands in its own. Direct keeps it as the protocol
demands: before the source is asked, the destination must have executed all that we sent it, else
the write could overtake a graph that still reads the tensor. An edge is probed before rendezvous
uses it; one that failed takes the hub and is tried again later, ever more rarely.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from ringline.client.connection import BULK
from ringline.client.edge import Edge, Path, Way
from ringline.client.lane import Ticket, current
from ringline.client.node import Node
from ringline.ggml.library import load
from ringline.settings import p2p_enabled, reply_timeout
from ringline.wire.commands import Command
from ringline.wire.extension import CopyTensorTo, Ping, ProbePeer, RecvTensor, SendTensor
from ringline.wire.messages import CopyTensor, GetTensor, Result, SetTensor

__all__ = ["Transfers", "tensor_size"]

_log = logging.getLogger(__name__)

_LEVELS: Final = {Path.DIRECT: 3, Path.RENDEZVOUS: 4}
#: what a RECV may wait, of the time that we wait for a reply: it must give up before we do, or a
#: lost transfer would look like a lost node.
_SHARE: Final = 0.75
#: bytes that a probe sends: a hidden state of some rows.
_PROBE: Final = 64 * 1024


class Transfers:
    """Moves tensors between nodes. All lanes of a ring use the same one."""

    def __init__(self, path: Path | None = None) -> None:
        """Use this path at the most; None: the best one, or the hub where RINGLINE_P2P=0.

        An edge that cannot do `path` takes the next lower one.
        """
        self._best = path or (Path.RENDEZVOUS if p2p_enabled() else Path.HUB)
        #: what went so far, by the numbers of the devices: from, to.
        self.ways: dict[tuple[int, int], Way] = {}
        self._staging = threading.local()
        self._deadline_ms = int(_SHARE * reply_timeout() * 1000)

    def way(self, source: int, target: int) -> Way:
        """What went from one device to another, by their numbers."""
        return self.ways.setdefault((source, target), Way())

    def expected(self, source: Node, target: Node) -> Path:
        """The path that a hidden state takes where nothing fails."""
        if source is target:
            return Path.COPY
        level = min(source.level, target.level)
        if self._best is Path.RENDEZVOUS and level >= _LEVELS[Path.RENDEZVOUS]:
            return Path.RENDEZVOUS
        better = self._best is not Path.HUB and level >= _LEVELS[Path.DIRECT]
        return Path.DIRECT if better else Path.HUB

    def could_do_better(self, source: Node, target: Node) -> bool:
        """Whether the hub is used from one node to another only because another way failed."""
        return self._best is not Path.HUB and source.edge(target).pause > 0

    def move(self, source: Node, src: bytes, target: Node, dst: bytes, size: int) -> Path:
        """Move `size` bytes of record `src` on one node to record `dst` on another or the same.

        Returns the path that was taken.

        Raises:
            NetworkError, PeerError: a node failed; nothing else gets in the way.
        """
        if source is target:
            path = Path.COPY if self._copy(source, src, dst) else Path.HUB
        else:
            path = self._between(source, src, target, dst, size)
        if path is Path.HUB:
            self._through_hub(source, src, target, dst, size)
        target.traffic.took(path)
        return path

    def _copy(self, node: Node, src: bytes, dst: bytes) -> bool:
        raw = node.connection.call(
            Command.COPY_TENSOR, CopyTensor(src, dst).pack(), size=Result.LAYOUT.size
        )
        return Result.unpack(raw).value == 1

    def _between(self, source: Node, src: bytes, target: Node, dst: bytes, size: int) -> Path:
        """Send from node to node; answers the path that was taken, the hub if none worked."""
        edge = source.edge(target)
        if self._best is Path.HUB or not edge.open():
            return Path.HUB
        level, lane = min(source.level, target.level), current()
        rendezvous = self._best is Path.RENDEZVOUS and level >= _LEVELS[Path.RENDEZVOUS]
        if rendezvous and lane is not None:
            if edge.probed or self._probe(source, target, edge):
                self._rendezvous(lane.ticket(source, target), src, dst, size)
                return Path.RENDEZVOUS
        elif level >= _LEVELS[Path.DIRECT] and self._copy_to(source, src, target, dst, size, edge):
            return Path.DIRECT
        return Path.HUB

    def _rendezvous(self, ticket: Ticket, src: bytes, dst: bytes, size: int) -> None:
        source, target = ticket.source, ticket.target
        session, name = target.greeting.session, str(target.endpoint)
        send = SendTensor(src, 0, size, ticket.number, session, name)
        source.connection.post(send.COMMAND, send.pack())
        source.connection.flush()
        receive = RecvTensor(dst, 0, size, ticket.number, self._deadline_ms)
        target.connection.post(receive.COMMAND, receive.pack())

    def _probe(self, source: Node, target: Node, edge: Edge) -> bool:
        """Ask the source whether it gets through to the destination's session."""
        request = ProbePeer(target.greeting.session, _PROBE, str(target.endpoint))
        raw = source.connection.call(
            request.COMMAND, request.pack(), size=ProbePeer.Reply.LAYOUT.size
        )
        reply = ProbePeer.Reply.unpack(raw)
        edge.probed = reply.result == 1
        if edge.probed:
            edge.round_trip_ns, edge.bytes_per_second = reply.round_trip_ns, reply.bytes_per_second
        else:
            self._give_up(source, target, edge)
        return edge.probed

    def _copy_to(
        self, source: Node, src: bytes, target: Node, dst: bytes, size: int, edge: Edge
    ) -> bool:
        if target.connection.dirty:
            target.connection.call(Ping.COMMAND, size=Result.LAYOUT.size)
        request = CopyTensorTo(src, dst, size, str(target.endpoint))
        raw = source.connection.call(request.COMMAND, request.pack(), size=Result.LAYOUT.size)
        if Result.unpack(raw).value == 1:
            edge.worked()
            return True
        self._give_up(source, target, edge)
        return False

    @staticmethod
    def _give_up(source: Node, target: Node, edge: Edge) -> None:
        edge.failed()
        _log.warning(
            "node %s cannot send to node %s directly: hidden states take the way through this "
            "process for the next %g s",
            source.endpoint,
            target.endpoint,
            edge.pause,
        )

    def _through_hub(self, source: Node, src: bytes, target: Node, dst: bytes, size: int) -> None:
        staging = self._staging_memory(size)
        source.connection.read(Command.GET_TENSOR, GetTensor(src, 0, size).pack(), target=staging)
        # Less than BULK stays in the queue while staging is used again: that takes a copy.
        body = staging if size >= BULK else bytes(staging)
        target.connection.post(Command.SET_TENSOR, SetTensor(dst, 0, 0).pack(), body)

    def _staging_memory(self, size: int) -> memoryview:
        """Memory of this thread, used again for each hidden state."""
        memory = getattr(self._staging, "memory", b"")
        if len(memory) < size:
            memory = self._staging.memory = bytearray(size)
        return memoryview(memory)[:size]


def tensor_size(address: int) -> int:
    """Bytes of the ggml_tensor at `address`."""
    return int(load().nbytes(address))
