"""What a node does with requests that it refuses: by kind of client, and with the session after."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import replace

import pytest

from ringline.errors import RefusedError
from ringline.wire.commands import Command
from ringline.wire.extension import COUNT, LENGTH, CopyTensorTo, Role, pack_get_tensors
from ringline.wire.frames import REQUEST_HEADER
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
    Hello,
    InitTensor,
    MemsetTensor,
    SetTensor,
    SetTensorHash,
)
from ringline.wire.tensor import NO_TENSOR, Tensor
from tests.peers.processes import Peer, ringline_node
from tests.server_client import Block, Client, addition, floats, op


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--device=CPU", "--threads=1") as node:
        yield node


@pytest.fixture
def stock(node: Peer) -> Iterator[Client]:
    with Client.stock(node.endpoint) as client:
        yield client


@pytest.fixture
def extended(node: Peer) -> Iterator[Client]:
    with Client.extended(node.endpoint) as client:
        yield client


NO_BUFFER = Tensor(1, 0, 0x1234_0000_5678, (4, 1, 1, 1), (4, 16, 16, 16), data=1 << 36)

#: requests that are well-formed and cannot be: with a reply, and without.
ANSWERED = {
    "alignment of no device": GetAlignment(7),
    "max size of no device": GetMaxSize(7),
    "memory of no device": GetDeviceMemory(7),
    "base of no buffer": BufferGetBase(77),
    "alloc size on no device": GetAllocSize(7, NO_BUFFER.pack(), NO_TENSOR * 10),
    "read of no buffer": GetTensor(NO_BUFFER.pack(), 0, 4),
}
SILENT = {
    "free of no buffer": FreeBuffer(77),
    "clear of no buffer": BufferClear(77, 0),
    "fill of no buffer": MemsetTensor(NO_BUFFER.pack(), 0, 4, 0),
    "write to no buffer": SetTensor(NO_BUFFER.pack(), 0, 0),
    "preparation in no buffer": InitTensor(NO_BUFFER.pack()),
    "recomputation of nothing": GraphRecompute(0),
    "recomputation on no device": GraphRecompute(7),
}


@pytest.mark.parametrize("request_", [*ANSWERED.values(), *SILENT.values()], ids=lambda r: "")
def test_a_stock_client_is_closed_where_the_protocol_has_no_no(stock, request_):
    stock.post(request_)
    assert stock.closed()


@pytest.mark.parametrize("request_", ANSWERED.values(), ids=ANSWERED.keys())
def test_an_extended_client_gets_an_error_and_goes_on(extended, request_):
    with pytest.raises(RefusedError, match=f"^{request_.COMMAND.name}: "):
        extended.call(request_)
    extended.ping()


@pytest.mark.parametrize("request_", SILENT.values(), ids=SILENT.keys())
def test_an_error_without_a_reply_answers_the_next_command_that_has_one(extended, request_):
    extended.post(request_)
    with pytest.raises(RefusedError, match=f"^{request_.COMMAND.name}: "):
        extended.call(DeviceCount())
    assert DeviceCount.Reply.unpack(extended.call(DeviceCount())).value == 1


def test_a_stock_client_is_answered_no_where_the_protocol_has_one(stock):
    copy = CopyTensor(NO_BUFFER.pack(), NO_BUFFER.pack())
    assert CopyTensor.Reply.unpack(stock.call(copy)).value == 0
    made = AllocBuffer.Reply.unpack(stock.call(AllocBuffer(7, 16)))
    assert made.handle == 0
    lost = SetTensorHash(NO_BUFFER.pack(), 0, 1)
    assert SetTensorHash.Reply.unpack(stock.call(lost)).value == 0


def test_the_log_names_client_command_and_reason(node, stock):
    stock.post(GetAlignment(7))
    assert stock.closed()
    (line,) = [line for line in node.log().splitlines() if "there is no device 7, this" in line][
        -1:
    ]
    assert "127.0.0.1:" in line
    assert "GET_ALIGNMENT" in line


def test_after_a_silent_error_commands_without_reply_are_dropped(extended):
    block = extended.alloc(64)
    tensor = block.vector(1, 16)
    extended.write(tensor, floats(*[1] * 16))
    extended.post(BufferClear(77, 0))
    extended.write(tensor, floats(*[2] * 16))
    extended.send(
        Command.SET_TENSORS,
        COUNT.pack(1),
        LENGTH.pack(SetTensor.LAYOUT.size + 4),
        SetTensor(tensor.pack(), 0, 0).pack(),
        floats(3),
    )
    with pytest.raises(RefusedError, match="BUFFER_CLEAR"):
        extended.ping()
    assert extended.read(tensor, 64) == floats(*[1] * 16)
    extended.write(tensor, floats(*[2] * 16))
    assert extended.read(tensor, 64) == floats(*[2] * 16)


def test_the_first_of_several_silent_errors_is_the_one_that_is_told(extended):
    extended.post(BufferClear(77, 0))
    extended.post(GraphRecompute(0))
    with pytest.raises(RefusedError, match="BUFFER_CLEAR"):
        extended.ping()
    extended.ping()


def test_a_buffer_is_freed_even_after_a_silent_error(extended):
    block = extended.alloc(64)
    extended.post(BufferClear(77, 0))
    extended.post(FreeBuffer(block.handle))
    with pytest.raises(RefusedError, match="BUFFER_CLEAR"):
        extended.ping()
    with pytest.raises(RefusedError, match="no buffer"):
        extended.call(BufferGetBase(block.handle))


def test_a_refused_bulk_write_leaves_the_stream_in_step(extended):
    tensor = extended.alloc(64).vector(1, 16)
    extended.write(tensor, bytes(10 << 20))
    with pytest.raises(RefusedError, match="are outside its 64 bytes"):
        extended.ping()
    extended.ping()


def test_no_session_reaches_the_buffers_of_another(node, extended):
    block = extended.alloc(64)
    with Client.extended(node.endpoint) as other:
        for request in (BufferGetBase(block.handle), GetTensor(block.vector(1, 1).pack(), 0, 4)):
            with pytest.raises(RefusedError, match="this session has no buffer"):
                other.call(request)
        other.post(FreeBuffer(block.handle))
        with pytest.raises(RefusedError, match="this session has no buffer"):
            other.ping()
    assert extended.call(BufferGetBase(block.handle))


def places(block: Block) -> dict[str, tuple[Tensor, int, int]]:
    """Tensor, offset and size of reads and writes that leave a buffer of 4096 bytes."""
    vector = block.vector(1, 16)
    most = (1 << 64) - 1
    return {
        "data before the buffer": (replace(vector, data=block.base - 1), 0, 4),
        "data after the buffer": (replace(vector, data=block.base + 4096), 0, 4),
        "data at 0": (replace(vector, data=0), 0, 4),
        "data at the end of addresses": (replace(vector, data=most), 0, 4),
        "end after the buffer": (replace(vector, data=block.base + 4096 - 60), 0, 4),
        "offset after the tensor": (vector, 65, 0),
        "size after the tensor": (vector, 60, 8),
        "offset that wraps": (vector, most, 2),
        "size that wraps": (vector, 8, most - 7),
        "type that is none": (replace(vector, type=4), 0, 4),
        "type out of the table": (replace(vector, type=1 << 31), 0, 4),
        "half a block": (replace(vector, type=2, ne=(48, 1, 1, 1)), 0, 4),
        "shape that wraps": (replace(vector, ne=((1 << 32) - 1,) * 4, nb=(4, 4, 4, 4)), 0, 4),
        "strides that wrap": (
            replace(vector, ne=(2, 1 << 31, 1 << 31, 2), nb=(most >> 32,) * 4),
            0,
            4,
        ),
    }


@pytest.mark.parametrize("case", places(Block(0, 1 << 36, 4096)).keys())
def test_nothing_outside_a_tensor_is_read_written_or_filled(extended, case):
    block = extended.alloc(4096)
    tensor, offset, size = places(block)[case]
    with pytest.raises(RefusedError, match=r"^GET_TENSOR: .*tensor 't1'"):
        extended.read(tensor, size, offset)
    extended.post(MemsetTensor(tensor.pack(), offset, size, 1))
    with pytest.raises(RefusedError, match="MEMSET_TENSOR"):
        extended.ping()
    if size < 100:
        extended.write(tensor, bytes(size), offset)
        with pytest.raises(RefusedError, match="SET_TENSOR"):
            extended.ping()
    extended.ping()


def test_a_batch_of_reads_is_checked_whole_before_it_is_read(extended):
    block = extended.alloc(4096)
    good, bad = (
        GetTensor(block.vector(1, 4).pack(), 0, 16),
        GetTensor(block.vector(2, 4).pack(), 0, 17),
    )
    extended.send(Command.GET_TENSORS, pack_get_tensors([good, bad]))
    with pytest.raises(RefusedError, match="17 bytes at 0 of tensor 't2'"):
        extended.reply()
    extended.ping()


def test_a_batch_of_reads_has_a_limit_for_its_sum(extended):
    tensor = extended.alloc(32 << 20).vector(1, 8 << 20)
    read = GetTensor(tensor.pack(), 0, 32 << 20)
    extended.send(Command.GET_TENSORS, pack_get_tensors([read] * 33))
    with pytest.raises(RefusedError, match="in one GET_TENSORS"):
        extended.reply()


def test_a_copy_must_fit_its_destination(extended):
    block = extended.alloc(4096)
    copy = CopyTensor(block.vector(1, 16).pack(), block.vector(2, 15, at=1024).pack())
    with pytest.raises(RefusedError, match="a copy of 64 bytes into a tensor of 60"):
        extended.call(copy)


def test_a_source_out_of_bounds_is_refused_before_anyone_is_dialled(extended):
    tensor = extended.alloc(64).vector(1, 16)
    request = CopyTensorTo(tensor.pack(), tensor.pack(), 65, "127.0.0.1:1")
    with pytest.raises(RefusedError, match="65 bytes of a tensor that has 64"):
        extended.call(request)


def test_a_graph_that_breaks_a_rule_is_refused_by_name(extended):
    block = extended.alloc(4096)
    left, right, total = addition(block)
    extended.compute([3], [left, replace(right, buffer=0xBAD), total])
    with pytest.raises(RefusedError, match=r"GRAPH_COMPUTE: tensor 't2'.*invalid data ptr"):
        extended.ping()
    extended.compute([3], [left, right, replace(total, op=op("CUSTOM"))])
    with pytest.raises(RefusedError, match="function pointer"):
        extended.ping()


def test_a_refused_graph_replaces_the_stored_one(extended):
    block = extended.alloc(4096)
    extended.compute([3], addition(block))
    extended.compute([4], addition(block))
    with pytest.raises(RefusedError):
        extended.ping()
    extended.recompute()
    with pytest.raises(RefusedError, match="there is no stored graph"):
        extended.ping()


MISFITS = {
    "unknown command": (200, b""),
    "HELLO again": (Command.HELLO, Hello().pack()),
    "too short a body": (Command.GET_ALIGNMENT, b"123"),
    "too long a body": (Command.DEVICE_COUNT, b"1"),
    "a graph whose counts do not fit": (Command.GRAPH_COMPUTE, struct.pack("<IIQ", 0, 9, 1)),
    "reads that do not fit": (Command.GET_TENSORS, COUNT.pack(2)),
    "writes that do not fit": (Command.SET_TENSORS, COUNT.pack(1) + LENGTH.pack(1 << 40)),
    "bytes after the writes": (Command.SET_TENSORS, COUNT.pack(0) + b"x"),
}


@pytest.mark.parametrize(("command", "body"), MISFITS.values(), ids=MISFITS.keys())
def test_what_is_no_request_is_told_and_ends_the_connection(extended, command, body):
    extended.send(command, body)
    with pytest.raises(RefusedError):
        extended.reply()
    assert extended.closed()


def test_a_frame_of_absurd_size_is_refused_before_room_is_made(extended, stock):
    header = REQUEST_HEADER.pack(Command.GRAPH_COMPUTE, 1 << 50)
    extended.stream.send([header])
    with pytest.raises(RefusedError, match="a body of 1125899906842624 bytes where 12 to"):
        extended.reply()
    stock.call(DeviceCount())
    stock.stream.send([header])
    assert stock.closed()


def test_a_peer_writes_and_does_nothing_else(node, extended):
    block = extended.alloc(64)
    tensor = block.vector(1, 16)
    session = block.handle >> 32
    with Client.extended(node.endpoint, Role.PEER, session=session) as peer:
        assert peer.greeting.secret == bytes(16)
        peer.write(tensor, floats(*range(16)))
        peer.barrier()
        peer.ping()
        assert extended.read(tensor, 64) == floats(*range(16))
    for request in (GetTensor(tensor.pack(), 0, 4), FreeBuffer(block.handle), AllocBuffer(0, 64)):
        with Client.extended(node.endpoint, Role.PEER, session=session) as peer:
            peer.post(request)
            with pytest.raises(RefusedError, match="a connection of role peer may not send it"):
                peer.reply()
            assert peer.closed()
    assert extended.read(tensor, 4) == floats(0)
