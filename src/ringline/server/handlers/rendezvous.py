"""Level 4: tensors that leave in one stream and arrive in another, met by ticket."""

from __future__ import annotations

import time
from typing import Final

from ringline.ggml.transfer import set_tensor as write_data
from ringline.net.deadline import Deadline
from ringline.server.context import Context
from ringline.server.handlers.tensors import read
from ringline.server.tally import Counter
from ringline.wire.extension import ProbePeer, RecvTensor, SendTensor
from ringline.wire.messages import Message

#: no client may make a stream wait longer than this for data.
_MOST_SECONDS: Final = 600.0
#: a probe sends at most this many bytes.
_MOST_PROBE: Final = 64 << 20


def send_tensor(request: SendTensor, context: Context) -> None:
    """Snapshot a part of a tensor and leave it to the worker of its destination.

    Everything before this command in the stream has been done, so the bytes are those that the
    client means; what comes after it may change the tensor while the snapshot is on its way.
    """
    region = context.registry.resolve(request.tensor)
    data = bytes(read(region, request.offset, request.size))
    context.session.senders.send(
        request.endpoint, request.session, request.ticket, data, context.reporter()
    )


def recv_tensor(request: RecvTensor, context: Context) -> None:
    """Write what comes under a ticket into a tensor; the stream waits for it."""
    region = context.registry.resolve(request.tensor)
    place = region.part(request.offset, request.size)
    seconds = min(request.deadline_ms / 1000, _MOST_SECONDS)
    began = time.perf_counter_ns()
    try:
        data = context.session.inbox.receive(
            request.ticket, request.size, place, deadline=Deadline(seconds), gone=context.gone
        )
    finally:
        waited = time.perf_counter_ns() - began
        context.session.tally.add(Counter.DATA_WAIT, waited, str(region.buffer.device))
    if data is None:
        return
    if place is not None:
        place[:] = data
    else:
        write_data(region.struct(), data, request.size, request.offset)


def probe_peer(request: ProbePeer, context: Context) -> Message:
    """Whether this node gets through to a session of another one, and how fast.

    A client asks before it uses a way, and again where transfers got lost on it.
    """
    context.session.senders.renew(request.endpoint, request.session)
    size = min(request.size, _MOST_PROBE)
    found = context.session.peers.probe(request.endpoint, request.session, size)
    if found is None:
        return ProbePeer.Reply(0, 0, 0)
    return ProbePeer.Reply(1, *found)
