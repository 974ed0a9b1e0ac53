"""All nodes of a ring as devices for libllama: connect, number the devices, close in order."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from ringline.client.counters import Counters
from ringline.client.device import RemoteDevice
from ringline.client.failures import Failures
from ringline.client.node import Node
from ringline.client.transfer import Transfers
from ringline.ggml.registry import DeviceHandle, Registry
from ringline.net.endpoint import Endpoint

__all__ = ["RemoteDevices"]


class RemoteDevices:
    """The devices of the nodes at `endpoints`, named RPC0, RPC1, ... in that order.

    A context manager. Close it after every model and context that used it.
    """

    def __init__(self, endpoints: Sequence[Endpoint], *, direct: bool | None = None) -> None:
        """Connect to every node.

        Args:
            endpoints: where the nodes listen.
            direct: whether hidden states go from node to node; None: as the environment says.

        Raises:
            NetworkError, PeerError: a node cannot be used; names it.
            LibraryError: the local ggml cannot be used.
        """
        self.counters = Counters()
        self.failures = Failures()
        self.nodes: list[Node] = []
        self._registry: Registry | None = None
        try:
            for endpoint in endpoints:
                self.nodes.append(Node(endpoint, self.counters))
            transfers = Transfers(direct)
            places = [(node, facts) for node in self.nodes for facts in node.devices]
            self.devices = [
                RemoteDevice(number, node, facts, transfers, self.failures)
                for number, (node, facts) in enumerate(places)
            ]
            self._registry = Registry(self.devices)
        except BaseException:
            self.close()
            raise

    @property
    def handles(self) -> list[DeviceHandle]:
        """The devices in C, in the order of `devices`."""
        return self._registry.devices if self._registry else []

    def check(self) -> None:
        """Raise what a callback could not raise; call it after each load and decode."""
        self.failures.check()

    def close(self) -> None:
        """End all sessions; may be called again, never raises."""
        for node in self.nodes:
            with contextlib.suppress(Exception):
                node.close()
        if self._registry is not None:
            self._registry.close()

    def __enter__(self) -> RemoteDevices:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
