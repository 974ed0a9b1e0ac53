"""What is known of one way from node to node: which path works, and when to try again."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

__all__ = ["Edge", "Path", "Way"]

#: seconds until a failed edge is tried again: first and longest wait.
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


class Path(StrEnum):
    """How a hidden state gets from one stage to the next."""

    #: between devices of one node
    COPY = "copy"
    #: through the coordinator: GET_TENSOR, SET_TENSOR
    HUB = "hub"
    #: COPY_TENSOR_TO: node to node while the coordinator waits, level 3
    DIRECT = "direct"
    #: SEND_TENSOR and RECV_TENSOR: node to node, nobody waits, level 4
    RENDEZVOUS = "rendezvous"


@dataclass(slots=True)
class Edge:
    """One way from a node to another, as its transfers have found it.

    Attributes:
        probed: whether the source has shown that it can send to the destination.
        round_trip_ns, bytes_per_second: what the probe measured, 0 before it.
        pause, not_before: how long the hub is used after a failure, and until when (monotonic).
    """

    probed: bool = False
    round_trip_ns: int = 0
    bytes_per_second: int = 0
    pause: float = 0.0
    not_before: float = 0.0

    def open(self) -> bool:
        """Whether a direct path may be tried now."""
        return self.pause == 0.0 or time.monotonic() >= self.not_before

    def worked(self) -> None:
        """A transfer arrived."""
        self.pause = 0.0

    def failed(self) -> None:
        """A transfer did not arrive: use the hub for a while, longer each time."""
        self.probed = False
        self.pause = min(max(2 * self.pause, _FIRST_PAUSE), _LONGEST_PAUSE)
        self.not_before = time.monotonic() + self.pause


@dataclass(slots=True)
class Way:
    """What has gone from one device to another so far.

    Attributes:
        last: the path that was taken last; None before the first.
        taken: hidden states by path.
        size: bytes of all of them.
    """

    last: Path | None = None
    taken: dict[str, int] = field(default_factory=dict)
    size: int = 0
    #: guards the numbers: each context moves its hidden states in its own thread.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def took(self, path: Path, size: int) -> None:
        """Count a hidden state."""
        with self._lock:
            self.last = path
            self.taken[path] = self.taken.get(path, 0) + 1
            self.size += size
