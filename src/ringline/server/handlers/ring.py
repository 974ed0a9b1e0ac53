"""Commands between nodes and of the extension: barriers, and tensors that go straight to a peer."""

from __future__ import annotations

from ringline.errors import RefusedError
from ringline.server.context import Context
from ringline.server.handlers.tensors import read
from ringline.server.tally import Counter
from ringline.wire.counters import DeviceCounters, PeerBytes, ReadCounters, SessionCounters
from ringline.wire.extension import CopyTensorTo, PeerBarrier, Ping
from ringline.wire.messages import Message
from ringline.wire.tensor import Tensor


def ping(_: Ping, __: Context) -> Message:
    """An answer in order."""
    return Ping.Reply(1)


def peer_barrier(_: PeerBarrier, __: Context) -> Message:
    """An answer in order: all that came before on this connection has been done."""
    return PeerBarrier.Reply(1)


def copy_tensor_to(request: CopyTensorTo, context: Context) -> Message:
    """Send the beginning of a tensor to a tensor of another node; 0: the client takes its own path.

    The source is read during a turn on its device, so that no computation is half-way through it;
    the turn ends before the network is used, or nodes that push at each other would deadlock. A
    host buffer is sent from where it is: the next command of this client waits behind this one.
    """
    region = context.registry.resolve(request.src)
    if request.size > region.size:
        raise RefusedError(f"{request.size} bytes of a tensor that has {region.size}")
    with context.turn(region.buffer.device):
        data = read(region, 0, request.size)
    session = Tensor.unpack(request.dst).buffer >> 32
    peers = context.session.peers
    return CopyTensorTo.Reply(int(peers.transfer(request.endpoint, session, request.dst, data)))


def read_counters(_: ReadCounters, context: Context) -> tuple[bytes]:
    """What this session has cost so far, all its connections together."""
    counts = context.session.tally.counts()

    def of(counter: Counter, label: object = "") -> int:
        return counts.get((counter, str(label)), 0)

    names = dict.fromkeys(
        label for name, label in counts if name in (Counter.PEER_SENT, Counter.PEER_RECEIVED)
    )
    counters = SessionCounters(
        tuple(
            DeviceCounters(
                of(Counter.BUSY, index),
                of(Counter.LOCK_WAIT, index),
                of(Counter.COMPUTED, index),
                of(Counter.DATA_WAIT, index),
            )
            for index in range(len(context.session.devices))
        ),
        {
            name: PeerBytes(of(Counter.PEER_SENT, name), of(Counter.PEER_RECEIVED, name))
            for name in names
        },
    )
    return (counters.pack(),)
