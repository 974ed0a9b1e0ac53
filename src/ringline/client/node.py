"""A node as its client sees it: one connection, one session, devices, and what we hold there."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ringline.client.connection import Connection
from ringline.client.counters import Counters, Traffic
from ringline.client.edge import Edge
from ringline.client.greeting import attach, greet
from ringline.client.lane import current
from ringline.errors import ProtocolError
from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN, TlsFiles
from ringline.wire.commands import Command
from ringline.wire.messages import (
    AllocBuffer,
    BufferGetBase,
    Count,
    DeviceCount,
    FreeBuffer,
    GetAlignment,
    GetDeviceMemory,
    GetMaxSize,
    Number,
)

__all__ = ["DeviceFacts", "Node"]

#: more devices than this on one node is an answer that we do not believe.
_MOST_DEVICES = 256


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a node says of one device. Sizes are bytes; kind is CPU, CUDA, ... or "" if unknown."""

    index: int
    alignment: int
    max_size: int
    name: str
    description: str
    kind: str


class Node:
    """One node. Everything here may raise NetworkError or PeerError, which name the node."""

    def __init__(self, endpoint: Endpoint, counters: Counters, tls: TlsFiles = PLAIN) -> None:
        self.endpoint = endpoint
        self.traffic = counters.node(str(endpoint))
        self._tls = tls
        self.main, self.greeting = greet(endpoint, self.traffic, tls)
        self._edges: dict[Node, Edge] = {}
        #: guards _buffers, _table and generation: each context frees and learns in its own thread.
        self._lock = threading.Lock()
        self._buffers: dict[int, int] = {}  # our ggml_backend_buffer_t -> the node's handle
        self._table: tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]] | None = None
        #: counts up when a buffer is freed: what was derived from handles is void then.
        self.generation = 0
        try:
            self.devices = [self._describe(index) for index in range(self._device_count())]
        except BaseException:
            self.main.close()
            raise

    @property
    def connection(self) -> Connection:
        """The connection of the lane that this thread has bound, else the main one."""
        lane = current()
        return self.main if lane is None else lane.to(self)

    def attach(self) -> Connection:
        """A further connection to our session, with a stream of commands of its own."""
        return attach(self.endpoint, self.greeting, self.traffic, self._tls)

    def attach_apart(self, *, silence: float) -> Connection:
        """A connection for questions about our session, which are none of the ring's traffic."""
        return attach(self.endpoint, self.greeting, Traffic(), self._tls, silence=silence)

    def edge(self, target: Node) -> Edge:
        """What is known of the way from this node to another."""
        return self._edges.setdefault(target, Edge())

    @property
    def level(self) -> int:
        """The extension level that both ends speak."""
        return self.greeting.level

    def memory(self, device: int) -> tuple[int, int]:
        """Free and total bytes of a device, now."""
        raw = self._ask(GetDeviceMemory(device), GetDeviceMemory.Reply.LAYOUT.size)
        reply = GetDeviceMemory.Reply.unpack(raw)
        return reply.free, reply.total

    def alloc_buffer(self, device: int, size: int) -> AllocBuffer.Reply:
        """Make a buffer; handle 0 means that there is no room."""
        raw = self._ask(AllocBuffer(device, size), AllocBuffer.Reply.LAYOUT.size)
        return AllocBuffer.Reply.unpack(raw)

    def buffer_base(self, handle: int) -> int:
        """The (virtual) address where a buffer begins."""
        return Number.unpack(self._ask(BufferGetBase(handle), Number.LAYOUT.size)).value

    def free_buffer(self, handle: int, address: int) -> None:
        """Give a buffer back; the node forgets its stored graphs, so every device must too."""
        connection = self.connection
        with connection.lock:  # no graph may be named between the two
            with self._lock:
                self.generation += 1
                self._buffers.pop(address, None)
                self._table = None
            connection.queue(Command.FREE_BUFFER, FreeBuffer(handle).pack())

    def learn(self, address: int, handle: int) -> None:
        """Note which C buffer of ours stands for which handle of the node."""
        with self._lock:
            self._buffers[address] = handle
            self._table = None

    def handle_of(self, address: int) -> int:
        """The node's handle for a C buffer, 0 if the buffer is not on this node."""
        return self._buffers.get(address, 0)

    def handles_of(self, addresses: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """handle_of() for an array of addresses."""
        with self._lock:
            if not self._buffers:
                return np.zeros(len(addresses), np.uint64)
            if self._table is None:
                items = sorted(self._buffers.items())
                known = np.array([address for address, _ in items], np.uint64)
                self._table = known, np.array([handle for _, handle in items], np.uint64)
            known, handles = self._table
        places = np.minimum(np.searchsorted(known, addresses), len(known) - 1)
        return np.where(known[places] == addresses, handles[places], np.uint64(0))

    def close(self) -> None:
        """Close the main connection; the session ends with the last one. Never raises."""
        self.main.close()

    def _ask(self, request: AllocBuffer | BufferGetBase | GetDeviceMemory, size: int) -> bytes:
        return self.connection.call(request.COMMAND, request.pack(), size=size)

    def _device_count(self) -> int:
        raw = self.connection.call(DeviceCount.COMMAND, size=Count.LAYOUT.size)
        count = Count.unpack(raw).value
        if not 0 < count <= _MOST_DEVICES:
            cause = f"it says that it has {count} devices"
            raise ProtocolError(cause, peer=self.main.peer, command="DEVICE_COUNT")
        return count

    def _describe(self, index: int) -> DeviceFacts:
        call, size = self.connection.call, Number.LAYOUT.size
        alignment = Number.unpack(call(GetAlignment.COMMAND, GetAlignment(index).pack(), size=size))
        max_size = Number.unpack(call(GetMaxSize.COMMAND, GetMaxSize(index).pack(), size=size))
        words = self._words(index)
        return DeviceFacts(
            index,
            alignment.value,
            max_size.value,
            name=str(words.get("name", "")),
            description=str(words.get("description", "")),
            kind=str(words.get("kind", "")),
        )

    def _words(self, index: int) -> dict[str, object]:
        devices = self.greeting.about.get("devices")
        if isinstance(devices, list) and index < len(devices) and isinstance(devices[index], dict):
            words: dict[str, object] = devices[index]
            return words
        return {}
