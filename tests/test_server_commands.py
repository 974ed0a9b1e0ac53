"""Every command of the base protocol and of the extension, on a real node."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import numpy as np
import pytest

from ringline.errors import RefusedError
from ringline.wire.commands import EXTENSION_LEVEL, Command
from ringline.wire.extension import (
    COUNT,
    LENGTH,
    CopyTensorTo,
    SupportsOp,
    pack_get_tensors,
)
from ringline.wire.messages import (
    AllocBuffer,
    BufferClear,
    CopyTensor,
    DeviceCount,
    FreeBuffer,
    GetAlignment,
    GetAllocSize,
    GetDeviceMemory,
    GetMaxSize,
    GetTensor,
    InitTensor,
    MemsetTensor,
    SetTensor,
    SetTensorHash,
)
from ringline.wire.tensor import NO_TENSOR, Tensor
from tests.peers.processes import Peer, ringline_node
from tests.server_client import Client, addition, floats, op


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--device=CPU", "--threads=1") as node:
        yield node


@pytest.fixture(params=["stock", "extended"])
def client(node: Peer, request: pytest.FixtureRequest) -> Iterator[Client]:
    """The base protocol is the same for both kinds of clients."""
    with getattr(Client, request.param)(node.endpoint) as client:
        yield client


@pytest.fixture
def extended(node: Peer) -> Iterator[Client]:
    with Client.extended(node.endpoint) as client:
        yield client


def test_hello_keeps_the_base_version_and_tells_the_level_in_the_padding(client):
    hello = client.hello
    assert (hello.major, hello.minor, hello.patch) == (7, 0, 0)
    assert hello.level == EXTENSION_LEVEL
    assert hello.caps == bytes(24)


def test_ext_hello_describes_the_node_and_its_session(extended):
    greeting = extended.greeting
    assert greeting.level == EXTENSION_LEVEL
    assert 0 < greeting.session < 1 << 32
    assert greeting.secret != bytes(16)
    assert greeting.about["version"]
    assert "0.3.36" in greeting.about["engine"]
    (device,) = greeting.about["devices"]
    assert device["name"] == "CPU"
    assert device["type"] == "CPU"
    assert device["kind"] == "CPU"
    assert 0 < device["memory_free"] <= device["memory_total"]


def test_devices_are_described(client):
    assert DeviceCount.Reply.unpack(client.call(DeviceCount())).value == 1
    assert GetAlignment.Reply.unpack(client.call(GetAlignment(0))).value == 32
    assert GetMaxSize.Reply.unpack(client.call(GetMaxSize(0))).value > 1 << 40
    memory = GetDeviceMemory.Reply.unpack(client.call(GetDeviceMemory(0)))
    assert 0 < memory.free <= memory.total


def test_a_buffer_has_a_handle_and_a_base_that_are_no_addresses_of_ours(client):
    first, second = client.alloc(100), client.alloc(100)
    assert first.size >= 100
    assert first.handle >> 32 == second.handle >> 32 != 0
    assert first.base % 4096 == second.base % 4096 == 0
    assert second.base > first.base + first.size


def test_a_buffer_larger_than_all_memory_is_refused_and_stock_clients_get_handle_0(node):
    with Client.stock(node.endpoint) as client:
        made = AllocBuffer.Reply.unpack(client.call(AllocBuffer(0, 1 << 60)))
        assert (made.handle, made.size) == (0, 0)
    with Client.extended(node.endpoint) as client:
        with pytest.raises(RefusedError, match=r"more than the [0-9]+ of the device"):
            client.call(AllocBuffer(0, 1 << 60))
        assert client.alloc(100).handle


def test_an_empty_buffer_can_be_made_cleared_and_freed(client):
    block = client.alloc(0)
    client.post(BufferClear(block.handle, 1))
    client.post(FreeBuffer(block.handle))
    assert DeviceCount.Reply.unpack(client.call(DeviceCount())).value == 1


def test_what_was_set_is_what_is_read(client):
    block = client.alloc(1 << 20)
    tensor = block.vector(1, 1000, at=4096)
    data = np.random.default_rng(1).bytes(4000)
    client.write(tensor, data)
    assert client.read(tensor, 4000) == data
    client.write(tensor, b"\x01" * 16, offset=100)
    assert client.read(tensor, 24, offset=96) == data[96:100] + b"\x01" * 16 + data[116:120]
    assert client.read(tensor, 0) == b""


def test_bulk_larger_than_any_socket_buffer_goes_through(client):
    block = client.alloc(32 << 20)
    tensor = block.vector(1, 8 << 20)
    data = np.random.default_rng(2).bytes(32 << 20)
    client.write(tensor, data)
    assert client.read(tensor, len(data)) == data


def test_a_buffer_and_a_tensor_can_be_filled(client):
    block = client.alloc(64)
    tensor = block.vector(1, 16)
    client.post(BufferClear(block.handle, 7))
    client.post(MemsetTensor(tensor.pack(), 8, 4, 9))
    assert client.read(tensor, 64) == b"\x07" * 8 + b"\x09" * 4 + b"\x07" * 52


def test_a_tensor_can_be_prepared(client):
    block = client.alloc(64)
    client.post(InitTensor(block.vector(1, 16).pack()))
    assert DeviceCount.Reply.unpack(client.call(DeviceCount())).value == 1


def test_a_tensor_is_copied_within_a_session(client):
    block, other = client.alloc(64), client.alloc(64)
    src, dst = block.vector(1, 16), other.vector(2, 16)
    client.write(src, floats(*range(16)))
    copied = CopyTensor.Reply.unpack(client.call(CopyTensor(src.pack(), dst.pack())))
    assert copied.value == 1
    assert client.read(dst, 64) == floats(*range(16))


def test_there_is_no_weight_cache_yet(client):
    tensor = client.alloc(64).vector(1, 16)
    request = SetTensorHash(tensor.pack(), 0, 1234)
    assert SetTensorHash.Reply.unpack(client.call(request)).value == 0


def test_an_alloc_size_is_the_devices(client):
    plain = Tensor(1, 0, 0, (64, 64, 1, 1), (4, 256, 16384, 16384))
    strided = Tensor(1, 0, 0, (64, 64, 1, 1), (4, 512, 32768, 32768))
    sizes = []
    for tensor in (plain, strided):
        request = GetAllocSize(0, tensor.pack(), NO_TENSOR * 10)
        sizes.append(GetAllocSize.Reply.unpack(client.call(request)).value)
    assert sizes == [16384, 32512]


def test_an_alloc_size_of_an_op_without_its_sources_is_that_of_the_plain_tensor(client):
    product = Tensor(1, 0, 0, (64, 64, 1, 1), (4, 256, 16384, 16384), op=op("MUL_MAT"))
    request = GetAllocSize(0, product.pack(), NO_TENSOR * 10)
    assert GetAllocSize.Reply.unpack(client.call(request)).value == 16384


def test_a_graph_is_computed_and_computed_again(client):
    block = client.alloc(4096)
    left, right, total = addition(block)
    client.write(left, floats(*range(8)))
    client.write(right, floats(*[1] * 8))
    client.compute([3], [left, right, total])
    assert client.read(total, 32) == floats(*range(1, 9))
    client.write(right, floats(*[10] * 8))
    client.recompute()
    assert client.read(total, 32) == floats(*range(10, 18))


def test_the_graph_of_llama_cpps_own_test_is_accepted(client):
    """test-rpc-multi-server.cpp: one node without op, buffer and data."""
    foreign = Tensor(9, 0, 0xDEAD, (1, 1, 1, 1), (4, 4, 4, 4))
    client.compute([9], [foreign])
    assert GetDeviceMemory.Reply.unpack(client.call(GetDeviceMemory(0))).total > 0


def test_a_freed_buffer_of_another_context_leaves_the_stored_graph_alone(extended):
    block, other = extended.alloc(4096), extended.alloc(64)
    extended.compute([3], addition(block))
    extended.post(FreeBuffer(other.handle))
    extended.recompute()
    extended.ping()


def test_a_freed_buffer_takes_the_stored_graph_along(extended):
    block = extended.alloc(4096)
    extended.compute([3], addition(block))
    extended.ping()
    extended.post(FreeBuffer(block.handle))
    extended.recompute()
    with pytest.raises(RefusedError, match="GRAPH_RECOMPUTE: the stored graph was forgotten"):
        extended.ping()


def test_a_ping_and_a_barrier_are_answered(extended):
    extended.ping()
    extended.barrier()


def test_many_reads_have_one_reply(extended):
    block = extended.alloc(4096)
    tensors = [block.vector(i, 4, at=64 * i) for i in range(3)]
    for i, tensor in enumerate(tensors):
        extended.write(tensor, floats(*[i] * 4))
    reads = [GetTensor(tensor.pack(), 4, 8) for tensor in tensors]
    extended.send(Command.GET_TENSORS, pack_get_tensors(reads))
    assert extended.reply() == floats(0, 0, 1, 1, 2, 2)


def test_many_writes_go_in_one_request(extended):
    block = extended.alloc(4096)
    tensors = [block.vector(i, 4, at=64 * i) for i in range(3)]
    parts = [COUNT.pack(3)]
    for i, tensor in enumerate(tensors):
        body = SetTensor(tensor.pack(), 0, 4).pack() + floats(i, i)
        parts += [LENGTH.pack(len(body)), body]
    extended.send(Command.SET_TENSORS, *parts)
    assert extended.read(tensors[2], 12, offset=4)[:8] == floats(2, 2)


def test_a_device_says_which_ops_it_supports(extended):
    matrix = Tensor(1, 0, 0, (64, 64, 1, 1), (4, 256, 16384, 16384))
    product = Tensor(3, 0, 0, (64, 64, 1, 1), (4, 256, 16384, 16384), op=op("MUL_MAT"))
    both = matrix.pack() * 2 + NO_TENSOR * 8
    asked = [
        SupportsOp(0, product.pack(), both),
        SupportsOp(0, product.pack(), NO_TENSOR * 10),
    ]
    answers = [SupportsOp.Reply.unpack(extended.call(request)).value for request in asked]
    assert answers == [1, 0]


def test_a_stock_client_never_reaches_the_extension(node):
    with Client.stock(node.endpoint) as client:
        client.call(DeviceCount())
        client.send(Command.PING)
        assert client.closed()


def test_a_session_of_a_lower_level_has_no_commands_of_a_higher_one(node):
    with Client.extended(node.endpoint, level=1) as client:
        client.ping()
        client.send(Command.PEER_BARRIER)
        with pytest.raises(RefusedError, match="extension level 3 on a connection of level 1"):
            client.reply()
        assert client.closed()


def test_a_transfer_without_a_route_is_answered_0(extended):
    tensor = extended.alloc(64).vector(1, 16)
    request = CopyTensorTo(tensor.pack(), tensor.pack(), 64, "nowhere.invalid:1")
    assert CopyTensorTo.Reply.unpack(extended.call(request)).value == 0


def test_replies_are_framed_by_their_size(client):
    client.send(Command.GET_ALIGNMENT, struct.pack("<I", 0))
    assert client.stream.read(16) == struct.pack("<QQ", 8, 32)
