"""How a hidden state gets from one node to another: copy, direct or hub.

    same node                      COPY_TENSOR           it never leaves the node
    both ends have level 3         COPY_TENSOR_TO        node to node; we only see "done"
    anything else, or "0"          GET_TENSOR, SET       through this process

Direct keeps the order as the protocol demands: before the source is asked, the destination must
have executed all that we sent it, else the write could overtake a graph that still reads the
tensor. An edge that answered "0" takes the hub and is tried again later, ever more rarely.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Final

from ringline.client.connection import BULK
from ringline.client.node import Node
from ringline.ggml.library import load
from ringline.settings import p2p_enabled
from ringline.wire.commands import Command
from ringline.wire.extension import CopyTensorTo, Ping
from ringline.wire.messages import CopyTensor, GetTensor, Result, SetTensor

__all__ = ["Transfers"]

_log = logging.getLogger(__name__)

_DIRECT_LEVEL: Final = 3
#: seconds until a failed edge is tried again: first and longest wait.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


@dataclass(slots=True)
class _Edge:
    """What we know of one way from node to node."""

    pause: float = 0.0
    not_before: float = 0.0


class Transfers:
    """Moves tensors between nodes and remembers which edges work."""

    def __init__(self, direct: bool | None = None) -> None:
        """Take the direct path where possible, never (False), or as the environment says (None)."""
        self._direct = p2p_enabled() if direct is None else direct
        self._edges: dict[tuple[str, str], _Edge] = {}
        self._staging = bytearray()

    def move(self, source: Node, src: bytes, target: Node, dst: bytes, size: int) -> None:
        """Move `size` bytes of record `src` on one node to record `dst` on another or the same.

        Raises:
            NetworkError, PeerError: a node failed; nothing else gets in the way.
        """
        if source is target:
            path = "copy" if self._copy(source, src, dst) else "hub"
        else:
            path = "direct" if self._copy_to(source, src, target, dst, size) else "hub"
        if path == "hub":
            self._through_hub(source, src, target, dst, size)
        target.traffic.took(path)

    def _copy(self, node: Node, src: bytes, dst: bytes) -> bool:
        raw = node.connection.call(
            Command.COPY_TENSOR, CopyTensor(src, dst).pack(), size=Result.LAYOUT.size
        )
        return Result.unpack(raw).value == 1

    def _copy_to(self, source: Node, src: bytes, target: Node, dst: bytes, size: int) -> bool:
        if not self._direct or min(source.level, target.level) < _DIRECT_LEVEL:
            return False
        edge = self._edges.setdefault((str(source.endpoint), str(target.endpoint)), _Edge())
        if time.monotonic() < edge.not_before:
            return False
        if target.connection.dirty:
            target.connection.call(Ping.COMMAND, size=Result.LAYOUT.size)
        request = CopyTensorTo(src, dst, size, str(target.endpoint))
        raw = source.connection.call(request.COMMAND, request.pack(), size=Result.LAYOUT.size)
        if Result.unpack(raw).value == 1:
            edge.pause = 0.0
            return True
        edge.pause = min(max(2 * edge.pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        edge.not_before = time.monotonic() + edge.pause
        _log.warning(
            "node %s cannot send to node %s directly: hidden states take the way through this "
            "process for the next %g s",
            source.endpoint,
            target.endpoint,
            edge.pause,
        )
        return False

    def _through_hub(self, source: Node, src: bytes, target: Node, dst: bytes, size: int) -> None:
        if len(self._staging) < size:
            self._staging = bytearray(size)
        staging = memoryview(self._staging)[:size]
        source.connection.read(Command.GET_TENSOR, GetTensor(src, 0, size).pack(), target=staging)
        # Less than BULK stays in the queue while staging is used again: that takes a copy.
        body = staging if size >= BULK else bytes(staging)
        target.connection.post(Command.SET_TENSOR, SetTensor(dst, 0, 0).pack(), body)


def tensor_size(address: int) -> int:
    """Bytes of the ggml_tensor at `address`."""
    return int(load().nbytes(address))
