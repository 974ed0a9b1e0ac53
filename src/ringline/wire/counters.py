"""READ_COUNTERS: what a session has cost its node so far. Times are nanoseconds, sizes bytes.

The reply is a JSON object, so that a later node may say more: whoever reads it takes what it knows
and leaves the rest.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import ClassVar, Final

from ringline.errors import ProtocolError
from ringline.wire.commands import Command
from ringline.wire.messages import Request

__all__ = ["MOST_COUNTERS", "DeviceCounters", "PeerBytes", "ReadCounters", "SessionCounters"]

#: the reply is at most so many bytes of text.
MOST_COUNTERS: Final = 60_000


@dataclass(frozen=True, slots=True)
class ReadCounters(Request):
    """What has this session cost? For nodes with Feature.COUNTERS."""

    COMMAND: ClassVar = Command.READ_COUNTERS
    LAYOUT: ClassVar = struct.Struct("<")


@dataclass(frozen=True, slots=True)
class DeviceCounters:
    """One device, for one session.

    Attributes:
        busy_ns: time in computations.
        lock_wait_ns: time that computations and reads waited while other sessions had the device.
        computations: how many there were.
        data_wait_ns: time that RECV_TENSOR waited for data of tensors on it.
    """

    busy_ns: int = 0
    lock_wait_ns: int = 0
    computations: int = 0
    data_wait_ns: int = 0


@dataclass(frozen=True, slots=True)
class PeerBytes:
    """Data of tensors that were sent to another node, and that came from it."""

    sent: int = 0
    received: int = 0


@dataclass(frozen=True, slots=True)
class SessionCounters:
    """The reply to READ_COUNTERS; all numbers only grow.

    Attributes:
        devices: in the order of the node.
        peers: by name: the endpoint that data were sent to, the address that data came from.
    """

    devices: tuple[DeviceCounters, ...]
    peers: Mapping[str, PeerBytes]

    def pack(self) -> bytes:
        """The reply as JSON text."""
        return json.dumps(
            {
                "devices": [asdict(device) for device in self.devices],
                "peers": {name: asdict(peer) for name, peer in self.peers.items()},
            }
        ).encode()

    @classmethod
    def unpack(cls, raw: bytes | memoryview) -> SessionCounters:
        """Read a reply.

        Raises:
            ProtocolError: it is no JSON object of this shape.
        """
        try:
            fields = json.loads(bytes(raw))
            return cls(
                tuple(
                    DeviceCounters(
                        _whole(device, "busy_ns"),
                        _whole(device, "lock_wait_ns"),
                        _whole(device, "computations"),
                        _whole(device, "data_wait_ns"),
                    )
                    for device in fields["devices"]
                ),
                {
                    str(name): PeerBytes(_whole(peer, "sent"), _whole(peer, "received"))
                    for name, peer in fields["peers"].items()
                },
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            cause = f"the counters of the session make no sense ({error!r})"
            raise ProtocolError(cause, command="READ_COUNTERS") from None


def _whole(fields: Mapping[str, object], name: str) -> int:
    value = fields[name]
    if not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is {value!r}")
    return value
