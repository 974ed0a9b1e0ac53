"""All nodes of a ring as devices for libllama: connect, number the devices, close in order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ringline.client.counters import Counters
from ringline.client.device import RemoteDevice
from ringline.client.edge import Path
from ringline.client.failures import Failures
from ringline.client.heartbeat import Heartbeat
from ringline.client.lane import Lane, current
from ringline.client.node import Node
from ringline.client.observer import Observer
from ringline.client.rows import RowTables
from ringline.client.thin import LEVEL, Parts
from ringline.client.transfer import Transfers
from ringline.ggml.registry import DeviceHandle, Registry
from ringline.net.endpoint import Endpoint
from ringline.net.tls import TlsFiles
from ringline.settings import level_5_parts
from ringline.wire.extension import Ping
from ringline.wire.messages import Result

__all__ = ["RemoteDevices"]


class RemoteDevices:
    """The devices of the nodes at `endpoints`, named RPC0, RPC1, ... in that order.

    A context manager. Close it after every model and context that used it.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        path: Path | None = None,
        parts: Parts | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Connect to every node.

        Args:
            endpoints: where the nodes listen.
            path: the best path that hidden states may take; None: as the environment says.
            parts: of level 5, which are used with nodes that have it; None: as the environment
                says, which is all.
            tls: our certificate and the ring's CA, PLAIN: no TLS; None: as the environment says.

        Raises:
            NetworkError, PeerError: a node cannot be used; names it.
            CallerError: a file of TLS cannot be used.
            LibraryError: the local ggml cannot be used.
        """
        self.counters = Counters()
        self.parts = parts or Parts.parse(level_5_parts(), "RINGLINE_PARTS")
        files = TlsFiles.chosen() if tls is None else tls
        self.failures = Failures()
        self.nodes: list[Node] = []
        self._registry: Registry | None = None
        self._heartbeat: Heartbeat | None = None
        self.observer: Observer | None = None
        try:
            for endpoint in endpoints:
                self.nodes.append(Node(endpoint, self.counters, files))
            self.transfers = Transfers(path)
            self.devices = self._describe(self.transfers)
            self._registry = Registry(self.devices)
            self._heartbeat = Heartbeat(self.nodes, self.failures)
            self.observer = Observer(self.nodes)
        except BaseException:
            self.close()
            raise

    @property
    def handles(self) -> list[DeviceHandle]:
        """The devices in C, in the order of `devices`."""
        return self._registry.devices if self._registry else []

    def lane(self) -> Lane:
        """Connections of its own for one llama_context; bind it in the thread that uses that.

        Raises:
            NetworkError, PeerError: a node cannot be reached, or has no room for it.
        """
        # Whatever was queued on the main connections (weights) must be done before others begin.
        for node in self.nodes:
            if node.level:
                node.main.call(Ping.COMMAND, size=Result.LAYOUT.size)
        return Lane.attach(self.nodes, encode=self.parts.codec)

    def _describe(self, transfers: Transfers) -> list[RemoteDevice]:
        devices: list[RemoteDevice] = []
        for node in self.nodes:
            rows = RowTables(node) if self.parts.rows and node.level >= LEVEL else None
            samples = self.parts.sampling and node.level >= LEVEL
            for facts in node.devices:
                device = RemoteDevice(
                    len(devices),
                    node,
                    facts,
                    transfers,
                    self.failures,
                    rows=rows,
                    samples=samples,
                )
                devices.append(device)
        return devices

    def check(self) -> None:
        """Raise what a callback could not raise; call it after each load and decode.

        Raises:
            TransferError: a transfer of this thread's step failed; it may be decoded again.
            NetworkError, PeerError: a node failed, the ring is of no use any more.
        """
        self.failures.check()
        lane = current()
        if lane is not None:
            lane.check()

    def close(self) -> None:
        """End all sessions; may be called again, never raises."""
        if self._heartbeat is not None:
            self._heartbeat.close()
        if self.observer is not None:
            self.observer.close()
        for node in self.nodes:
            with contextlib.suppress(Exception):
                node.close()
        if self._registry is not None:
            self._registry.close()

    def __enter__(self) -> RemoteDevices:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
