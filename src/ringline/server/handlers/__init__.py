"""One function per command: takes a decoded request and the context, returns a reply or None.

A handler touches no socket. It refuses by RefusedError; what the client sees of that is the
connection's business. SET_TENSOR, SET_TENSORS and PEER_DATA are not in this table: their data goes
from the network to its final place, so connection.py reads them piece by piece.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from ringline.server.context import Context
from ringline.server.handlers import (
    buffers,
    devices,
    graphs,
    rendezvous,
    ring,
    rows,
    sampling,
    tensors,
)
from ringline.wire.commands import Command
from ringline.wire.counters import ReadCounters
from ringline.wire.extension import (
    CopyTensorTo,
    PeerBarrier,
    Ping,
    ProbePeer,
    RecvTensor,
    SendTensor,
    SupportsOp,
    unpack_get_tensors,
)
from ringline.wire.messages import (
    AllocBuffer,
    BufferClear,
    BufferGetBase,
    CopyTensor,
    DeviceCount,
    FreeBuffer,
    GetAlignment,
    GetAllocSize,
    GetDeviceMemory,
    GetMaxSize,
    GetTensor,
    GraphRecompute,
    InitTensor,
    MemsetTensor,
    Message,
    SetTensorHash,
)
from ringline.wire.rows import CheckRows, SetRows, unpack_row_table
from ringline.wire.sampling import (
    KeepRows,
    ReadKept,
    Sample,
    SamplerFree,
    SamplerNew,
    VocabularyPart,
)

__all__ = ["HANDLERS", "Handler", "Reply"]

Bytes = bytes | bytearray | memoryview
#: a message, the parts of a reply of data, or nothing.
Reply = Message | Sequence[Bytes] | None
#: the body of a request and the context.
Handler = Callable[[memoryview, Context], Reply]
Request = TypeVar("Request")


def _handler(
    decode: Callable[[memoryview], Request], handle: Callable[[Request, Context], Reply]
) -> Handler:
    def run(body: memoryview, context: Context) -> Reply:
        return handle(decode(body), context)

    return run


HANDLERS: Final[dict[Command, Handler]] = {
    Command.ALLOC_BUFFER: _handler(AllocBuffer.unpack, buffers.alloc_buffer),
    Command.GET_ALIGNMENT: _handler(GetAlignment.unpack, devices.get_alignment),
    Command.GET_MAX_SIZE: _handler(GetMaxSize.unpack, devices.get_max_size),
    Command.BUFFER_GET_BASE: _handler(BufferGetBase.unpack, buffers.buffer_get_base),
    Command.FREE_BUFFER: _handler(FreeBuffer.unpack, buffers.free_buffer),
    Command.BUFFER_CLEAR: _handler(BufferClear.unpack, buffers.buffer_clear),
    Command.SET_TENSOR_HASH: _handler(SetTensorHash.unpack, tensors.set_tensor_hash),
    Command.GET_TENSOR: _handler(GetTensor.unpack, tensors.get_tensor),
    Command.COPY_TENSOR: _handler(CopyTensor.unpack, tensors.copy_tensor),
    Command.GRAPH_COMPUTE: graphs.graph_compute,
    Command.GET_DEVICE_MEMORY: _handler(GetDeviceMemory.unpack, devices.get_device_memory),
    Command.INIT_TENSOR: _handler(InitTensor.unpack, tensors.init_tensor),
    Command.GET_ALLOC_SIZE: _handler(GetAllocSize.unpack, devices.get_alloc_size),
    Command.DEVICE_COUNT: _handler(DeviceCount.unpack, devices.device_count),
    Command.GRAPH_RECOMPUTE: _handler(GraphRecompute.unpack, graphs.graph_recompute),
    Command.MEMSET_TENSOR: _handler(MemsetTensor.unpack, tensors.memset_tensor),
    Command.PING: _handler(Ping.unpack, ring.ping),
    Command.GET_TENSORS: _handler(unpack_get_tensors, tensors.get_tensors),
    Command.COPY_TENSOR_TO: _handler(CopyTensorTo.unpack, ring.copy_tensor_to),
    Command.PEER_BARRIER: _handler(PeerBarrier.unpack, ring.peer_barrier),
    Command.SEND_TENSOR: _handler(SendTensor.unpack, rendezvous.send_tensor),
    Command.RECV_TENSOR: _handler(RecvTensor.unpack, rendezvous.recv_tensor),
    Command.PROBE_PEER: _handler(ProbePeer.unpack, rendezvous.probe_peer),
    Command.SUPPORTS_OP: _handler(SupportsOp.unpack, devices.supports_op),
    Command.READ_COUNTERS: _handler(ReadCounters.unpack, ring.read_counters),
    Command.ROW_TABLE: _handler(unpack_row_table, rows.row_table),
    Command.SET_ROWS: _handler(SetRows.unpack, rows.set_rows),
    Command.CHECK_ROWS: _handler(CheckRows.unpack, rows.check_rows),
    Command.KEEP_ROWS: _handler(KeepRows.unpack, sampling.keep_rows),
    Command.SAMPLER_NEW: _handler(SamplerNew.unpack, sampling.sampler_new),
    Command.SAMPLER_FREE: _handler(SamplerFree.unpack, sampling.sampler_free),
    Command.SAMPLE: _handler(Sample.unpack, sampling.sample),
    Command.READ_KEPT: _handler(ReadKept.unpack, sampling.read_kept),
    Command.VOCABULARY: _handler(VocabularyPart.unpack, sampling.vocabulary),
}
