"""Remote devices, buffers and streams: what stands behind ggml's callback tables.

Every method here is called by libllama through the guard: whatever it raises is kept in the ring's
Failures and C gets a fallback. Addresses of C structs are ints, sizes bytes.
"""

from __future__ import annotations

from ringline.client.connection import BULK, Connection
from ringline.client.failures import Failures
from ringline.client.lane import current
from ringline.client.node import DeviceFacts, Node
from ringline.client.rows import RowTables, gather_behind
from ringline.client.tensors import TensorPacker, buffer_address, graph_body, sources
from ringline.client.transfer import Transfers, tensor_size
from ringline.errors import RefusedError, TransferError
from ringline.ggml.graph import gather, graph_uid
from ringline.ggml.layout import TENSOR, TENSOR_SIZE
from ringline.ggml.memory import copy_out, record_at, view
from ringline.ggml.provider import StreamProvider
from ringline.ggml.registry import buffer_behind
from ringline.ggml.types import tables
from ringline.wire.commands import Command
from ringline.wire.extension import Feature, SupportsOp
from ringline.wire.messages import (
    BufferClear,
    GetAllocSize,
    GetTensor,
    GraphRecompute,
    InitTensor,
    MemsetTensor,
    Number,
    Result,
    SetTensor,
)

__all__ = ["RemoteBuffer", "RemoteDevice", "RemoteStream"]

#: quantised rows that are no multiple of this may be padded by a device (CUDA).
_PADDED_ROW = 512


class RemoteDevice:
    """One device of a node, as libllama's device number `number`."""

    def __init__(
        self,
        number: int,
        node: Node,
        facts: DeviceFacts,
        transfers: Transfers,
        failures: Failures,
        *,
        rows: RowTables | None = None,
        samples: bool = False,
    ) -> None:
        """Describe a device.

        Args:
            number: its place among the devices of the ring.
            node: where it is.
            facts: what the node says of it.
            transfers: move hidden states to it.
            failures: keep what cannot be raised.
            rows: the node's embedding tables; None: embeddings go as numbers.
            samples: whether the node chooses tokens where the logits are.
        """
        self.number = number
        self.name = f"RPC{number}"
        self.description = f"{facts.description} at {node.endpoint}".strip()
        self.buffer_type_name = f"RPC{facts.index}[{node.endpoint}]"
        self.alignment = facts.alignment
        self.max_size = facts.max_size
        self.node = node
        self.facts = facts
        self.transfers = transfers
        self.rows = rows
        self.samples = samples
        self.packer = TensorPacker(node)
        #: a CPU of the same ggml pads nothing.
        self.plain = facts.kind == "CPU"
        asks = node.greeting.features & Feature.SUPPORTS_OP
        #: so is a stock server, which does not say what it is: every ggml device has to fall back
        #: to what a CPU can compute.
        self.like_cpu = facts.kind in ("", "CPU") or not asks
        self._failures = failures
        self._alloc_sizes: dict[tuple[bytes, ...], int] = {}
        self._supported: dict[tuple[bytes, ...], bool] = {}

    def fail(self, error: BaseException) -> None:
        """Keep what a callback could not raise: a failed transfer concerns its lane alone."""
        lane = current()
        if isinstance(error, TransferError) and lane is not None:
            lane.fail(error)
        else:
            self._failures.add(error)

    def memory(self) -> tuple[int, int]:
        """Free and total bytes."""
        return self.node.memory(self.facts.index)

    def supports_op(self, tensor: int) -> bool:
        """Ask the node, once for each kind of tensor; never called where it is `like_cpu`."""
        key = (_shape(tensor), *(_shape(source) for source in sources(tensor)))
        answer = self._supported.get(key)
        if answer is None:
            raw = self._ask_about(Command.SUPPORTS_OP, tensor, Result.LAYOUT.size)
            answer = self._supported[key] = Result.unpack(raw).value == 1
        return answer

    def alloc_size(self, tensor: int) -> int:
        """Bytes for a tensor; asks the node only where its device may want more than nbytes."""
        fields = record_at(tensor, TENSOR)[0]
        known, kind = tables(), int(fields["type"])
        padded = (
            bool(known.quantized[kind])
            and int(fields["ne"][0]) % _PADDED_ROW != 0
            and not int(fields["view_src"])
        )
        if not (padded or known.grows[int(fields["op"])]):
            return tensor_size(tensor)
        key = (_shape(tensor),)
        size = self._alloc_sizes.get(key)
        if size is None:
            raw = self._ask_about(Command.GET_ALLOC_SIZE, tensor, Number.LAYOUT.size)
            size = self._alloc_sizes[key] = Number.unpack(raw).value
        return size

    def alloc_buffer(self, size: int) -> RemoteBuffer | None:
        """A buffer on the node, or None; the refusal is kept for the error message."""
        try:
            reply = self.node.alloc_buffer(self.facts.index, size)
        except RefusedError as error:  # libllama can do without, or says that it cannot
            self._failures.hint(error)
            return None
        if reply.handle:
            base = self.node.buffer_base(reply.handle) if reply.size else 0
            return RemoteBuffer(self, reply.handle, reply.size, base)
        free, total = self.memory()
        self._failures.hint(
            RefusedError(
                f"no room for {size / 2**20:.1f} MiB on {self.name} ({free / 2**20:.0f} of "
                f"{total / 2**20:.0f} MiB free); give this stage fewer layers (-ts) or a shorter "
                f"context (-c)",
                peer=str(self.node.endpoint),
                command="ALLOC_BUFFER",
            )
        )
        return None

    def open_stream(self) -> RemoteStream:
        """A stream on this device."""
        return RemoteStream(self)

    def write(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Queue a write; the data are taken, or sent from where they lie, before this returns."""
        head = SetTensor(self.packer.pack(tensor), 0, offset).pack()
        body = view(data, size) if size >= BULK else copy_out(data, size)
        self.node.connection.post(Command.SET_TENSOR, head, body)

    def compute(self, graph: int) -> None:
        """Send a graph, with what is queued before it; the node's last one is only named.

        It is sent at once: the node computes while we prepare the next stage. Where steps are
        encoded, what follows makes one message with it: the transfer to the next stage, a read, or
        the next piece of a prompt.
        """
        connection = self.node.connection
        if not self._recompute(connection, graph_uid(graph)):
            body = graph_body(self.facts.index, gather(graph), self.node).pack()
            with connection.lock:
                connection.queue(Command.GRAPH_COMPUTE, body)
                connection.graphs[self.facts.index] = (graph_uid(graph), self.node.generation)
        if not connection.gathers_graphs:
            connection.flush()

    def _recompute(self, connection: Connection, uid: int) -> bool:
        """Queue GRAPH_RECOMPUTE if the node's last graph is this one."""
        index = self.facts.index
        with connection.lock:  # on a shared connection the last graph may be another context's
            same = connection.graphs.get(index) == (uid, self.node.generation)
            if uid and same:
                connection.queue(Command.GRAPH_RECOMPUTE, GraphRecompute(index).pack())
            return bool(uid and same)

    def _ask_about(self, command: Command, tensor: int, size: int) -> bytes:
        records = b"".join(self.packer.pack(source) for source in sources(tensor))
        kind = SupportsOp if command is Command.SUPPORTS_OP else GetAllocSize
        request = kind(self.facts.index, self.packer.pack(tensor), records)
        return self.node.connection.call(command, request.pack(), size=size)


def _shape(address: int) -> bytes:
    """What type, ne, nb, op and op_params of a tensor are, as a key; empty for address 0."""
    if not address:
        return b""
    raw = copy_out(address, TENSOR_SIZE)
    return raw[:8] + raw[16:148]


class RemoteBuffer:
    """A buffer on a node."""

    def __init__(self, device: RemoteDevice, handle: int, size: int, base: int) -> None:
        self.device = device
        self.size = size
        self.fail = device.fail
        self._handle = handle
        self._base = base
        self._address = 0

    def born(self, address: int) -> None:
        """The C struct that stands for this buffer has been made."""
        self._address = address
        self.device.node.learn(address, self._handle)

    def base(self) -> int:
        """The node's (virtual) address; tensors' data count from it."""
        return self._base

    def free(self) -> None:
        """Give it back."""
        self.device.node.free_buffer(self._handle, self._address)

    def init_tensor(self, tensor: int) -> None:
        """Tell the node of tensors that its device may pad; others cost nothing."""
        fields = record_at(tensor, TENSOR)[0]
        padded = int(fields["ne"][0]) % _PADDED_ROW != 0 and not int(fields["view_src"])
        if padded and tables().quantized[int(fields["type"])]:
            request = InitTensor(self.device.packer.pack(tensor))
            self.device.node.connection.post(request.COMMAND, request.pack())

    def fill(self, tensor: int, value: int, offset: int, size: int) -> None:
        """Set a range of a tensor to one byte value."""
        request = MemsetTensor(self.device.packer.pack(tensor), offset, size, value)
        self.device.node.connection.post(request.COMMAND, request.pack())

    def set(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Write a range of a tensor."""
        self.device.write(tensor, data, offset, size)

    def get(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Read a range of a tensor and wait for it."""
        request = GetTensor(self.device.packer.pack(tensor), offset, size)
        self.device.node.connection.read(request.COMMAND, request.pack(), target=view(data, size))

    def copy_from(self, src: int, dst: int) -> bool:
        """Copy from another remote buffer; False for a buffer that is not ours."""
        return _move(src, self.device, dst)

    def clear(self, value: int) -> None:
        """Set all of it to one byte value."""
        request = BufferClear(self._handle, value)
        self.device.node.connection.post(request.COMMAND, request.pack())


class RemoteStream:
    """A stream of work on a remote device: all streams of a node share its connection."""

    def __init__(self, device: RemoteDevice) -> None:
        self.name = device.buffer_type_name
        self.fail = device.fail
        self.device = device

    def close(self) -> None:
        """Nothing of a stream lives on the node."""

    def set_async(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Queue a write; the data are taken before this returns."""
        self.device.write(tensor, data, offset, size)

    def get_async(self, tensor: int, data: int, offset: int, size: int) -> None:
        """Queue a read; the data are there after synchronize(), or stay where they are."""
        lane = current()
        kept = None if lane is None else lane.kept
        if kept is not None and kept.take(self.device, tensor, data, offset, size):
            return
        request = GetTensor(self.device.packer.pack(tensor), offset, size)
        self.device.node.connection.expect(request.COMMAND, request.pack(), target=view(data, size))

    def copy_async(self, source: StreamProvider | None, src: int, dst: int) -> bool:
        """Take a tensor from another remote device by the best path, or an embedding as token ids.

        False: it is on this machine and must go as it is.
        """
        if source is not None:
            return _move(src, self.device, dst)
        rows = self.device.rows
        gather = None if rows is None else gather_behind(src)
        if rows is None or gather is None:
            return False
        return rows.send(gather, self.device.packer.pack(dst))

    def synchronize(self) -> None:
        """Send what is queued and wait for all replies on their way."""
        self.device.node.connection.drain()

    def compute(self, graph: int) -> None:
        """Queue a graph."""
        self.device.compute(graph)


def _move(src: int, target: RemoteDevice, dst: int) -> bool:
    buffer = buffer_behind(buffer_address(src))
    if not isinstance(buffer, RemoteBuffer):
        return False
    source = buffer.device
    source_record, target_record = source.packer.pack(src), target.packer.pack(dst)
    transfers, size = target.transfers, tensor_size(src)
    path = transfers.move(source.node, source_record, target.node, target_record, size)
    transfers.way(source.number, target.number).took(path, size)
    return True
