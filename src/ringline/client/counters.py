"""Who sent what to whom: per node and command, counts and bytes; and a window over decode steps.

Bytes are what the protocol puts on the stream, frame headers included, TCP/IP not. "out" is from
the coordinator to the node. Data that goes from node to node is not in here: that is the point.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ringline.errors import RemoteError

__all__ = ["Counters", "PerStep", "Traffic", "Window"]


@dataclass(slots=True)
class Traffic:
    """What went over one connection so far.

    Attributes:
        commands: how often each command was sent.
        command_bytes: bytes sent for each command.
        bytes_in: bytes received.
        paths: how often a hidden state took each path: copy (same node), direct, hub.
    """

    commands: dict[str, int] = field(default_factory=dict)
    command_bytes: dict[str, int] = field(default_factory=dict)
    bytes_in: int = 0
    paths: dict[str, int] = field(default_factory=dict)
    #: guards the numbers: the threads of several contexts count at once.
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    @property
    def bytes_out(self) -> int:
        """Bytes sent."""
        return sum(self.command_bytes.values())

    def sent(self, command: str, size: int) -> None:
        """Count one request of `size` bytes."""
        with self._lock:
            self.commands[command] = self.commands.get(command, 0) + 1
            self.command_bytes[command] = self.command_bytes.get(command, 0) + size

    def received(self, size: int) -> None:
        """Count a reply of `size` bytes."""
        with self._lock:
            self.bytes_in += size

    def took(self, path: str) -> None:
        """Count one hidden state's way to this node."""
        with self._lock:
            self.paths[path] = self.paths.get(path, 0) + 1

    def copy(self) -> Traffic:
        """The numbers as they are now."""
        with self._lock:
            return Traffic(
                dict(self.commands), dict(self.command_bytes), self.bytes_in, dict(self.paths)
            )

    def since(self, earlier: Traffic) -> Traffic:
        """What has come since `earlier`."""
        return Traffic(
            _minus(self.commands, earlier.commands),
            _minus(self.command_bytes, earlier.command_bytes),
            self.bytes_in - earlier.bytes_in,
            _minus(self.paths, earlier.paths),
        )

    @classmethod
    def total(cls, parts: Iterable[Traffic]) -> Traffic:
        """Sum over nodes."""
        total = cls()
        for part in parts:
            for name, count in part.commands.items():
                total.commands[name] = total.commands.get(name, 0) + count
            for name, size in part.command_bytes.items():
                total.command_bytes[name] = total.command_bytes.get(name, 0) + size
            for name, count in part.paths.items():
                total.paths[name] = total.paths.get(name, 0) + count
            total.bytes_in += part.bytes_in
        return total


def _minus(now: Mapping[str, int], then: Mapping[str, int]) -> dict[str, int]:
    return {name: n - then.get(name, 0) for name, n in now.items() if n != then.get(name, 0)}


@dataclass(frozen=True, slots=True)
class PerStep:
    """Means over the steps of a window: {NAME: commands}, {NAME: bytes}, bytes out and in."""

    commands: dict[str, float]
    command_bytes: dict[str, float]
    bytes_out: float
    bytes_in: float
    paths: dict[str, float]


class Counters:
    """The traffic of all nodes of a ring, by endpoint."""

    def __init__(self) -> None:
        self.nodes: dict[str, Traffic] = {}
        #: errors after which a step was decoded again, by node and class.
        self.errors: dict[tuple[str, str], int] = {}
        #: guards errors: each context has a thread.
        self._lock = threading.Lock()

    def failed(self, error: RemoteError) -> None:
        """Count an error that the ring has survived."""
        key = error.peer, type(error).__name__
        with self._lock:
            self.errors[key] = self.errors.get(key, 0) + 1

    def node(self, endpoint: str) -> Traffic:
        """The traffic with one node; made on first use."""
        return self.nodes.setdefault(endpoint, Traffic())

    def snapshot(self) -> dict[str, Traffic]:
        """A copy of all numbers."""
        return {endpoint: traffic.copy() for endpoint, traffic in self.nodes.items()}


class Window:
    """The traffic of decode steps only: what lies between start() and stop(), summed up."""

    def __init__(self, counters: Counters) -> None:
        self._counters = counters
        self._before: dict[str, Traffic] = {}
        self.nodes: dict[str, Traffic] = {}
        self.steps = 0

    def start(self) -> None:
        """A step begins."""
        self._before = self._counters.snapshot()

    def stop(self) -> None:
        """The step is over."""
        for endpoint, traffic in self._counters.snapshot().items():
            step = traffic.since(self._before.get(endpoint, Traffic()))
            self.nodes[endpoint] = Traffic.total([self.nodes.get(endpoint, Traffic()), step])
        self.steps += 1

    def per_step(self, endpoint: str | None = None) -> PerStep:
        """Means per step, of one node or of all together."""
        parts = self.nodes.values() if endpoint is None else [self.nodes.get(endpoint, Traffic())]
        total, steps = Traffic.total(parts), max(1, self.steps)
        return PerStep(
            {name: count / steps for name, count in total.commands.items()},
            {name: size / steps for name, size in total.command_bytes.items()},
            total.bytes_out / steps,
            total.bytes_in / steps,
            {name: count / steps for name, count in total.paths.items()},
        )
