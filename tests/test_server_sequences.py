"""Commands in any order, right and wrong ones, against a real node: memory is as a model says.

The model is a dictionary of byte arrays. What it says is impossible is refused, and the session
goes on; what it says is possible happens, and what is read is what was written. Freed twice, never
made, of no size, recomputed after its memory is gone: in every order that hypothesis thinks of.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ringline.errors import RefusedError
from ringline.wire.messages import (
    AllocBuffer,
    BufferClear,
    BufferGetBase,
    CopyTensor,
    FreeBuffer,
    MemsetTensor,
)
from ringline.wire.tensor import Tensor
from tests.peers.processes import Peer, ringline_node
from tests.server_client import Block, Client, addition

I8 = 24
#: bytes that no device has.
TOO_MUCH = 1 << 45
JUNK = Block(0xDEAD_0000_BEEF, 1 << 36, 4096)


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--threads=1") as node:
        yield node
        assert "session_crash" not in node.log()
        assert "was killed by" not in node.log()


@dataclass
class Model:
    """A client and what it believes of its session: buffers by number, None where freed."""

    client: Client
    blocks: list[Block] = field(default_factory=list)
    bytes_of: dict[int, bytearray] = field(default_factory=dict)
    #: number of the buffer that the stored graph uses.
    stored: int | None = None

    def block(self, number: int) -> tuple[Block, bytearray | None]:
        """The buffer that a number means: one that is, one that was, or none that ever was."""
        if not self.blocks:
            return JUNK, None
        number %= len(self.blocks) + 1
        if number == len(self.blocks):
            return JUNK, None
        return self.blocks[number], self.bytes_of.get(number)

    def settle(self, possible: bool) -> None:
        """After commands without a reply: an error comes if and only if they were impossible."""
        if possible:
            self.client.ping()
        else:
            with pytest.raises(RefusedError):
                self.client.ping()
            self.client.ping()


numbers = st.integers(0, 6)
offsets = st.one_of(st.integers(0, 300), st.integers(0, (1 << 64) - 1))
sizes = st.one_of(st.integers(0, 300), st.just(1 << 40))


def vector(block: Block, size: int = 256) -> Tensor:
    n = min(size, block.size)
    return Tensor(1, I8, block.handle, (n, 1, 1, 1), (1, n, n, n), data=block.base, name="v")


def fits(memory: bytearray | None, block: Block, offset: int, size: int) -> bool:
    return memory is not None and offset + size <= min(256, block.size)


def alloc(model: Model, size: int) -> None:
    if size >= TOO_MUCH:
        with pytest.raises(RefusedError, match="of the device"):
            model.client.call(AllocBuffer(0, size))
        return
    reply = AllocBuffer.Reply.unpack(model.client.call(AllocBuffer(0, size)))
    if not reply.handle:
        assert size == 0
        return
    base = BufferGetBase.Reply.unpack(model.client.call(BufferGetBase(reply.handle))).value
    number = len(model.blocks)
    model.blocks.append(Block(reply.handle, base, reply.size))
    model.client.post(BufferClear(reply.handle, 0))
    model.bytes_of[number] = bytearray(reply.size)


def free(model: Model, number: int) -> None:
    block, memory = model.block(number)
    model.client.post(FreeBuffer(block.handle))
    model.settle(memory is not None)
    if memory is not None:
        number = model.blocks.index(block)
        del model.bytes_of[number]
        if model.stored == number:
            model.stored = None


def write(model: Model, number: int, offset: int, size: int) -> None:
    block, memory = model.block(number)
    size = min(size, 300)
    data = bytes((offset + index) % 251 for index in range(size))
    model.client.write(vector(block), data, offset)
    model.settle(fits(memory, block, offset, size))
    if memory is not None and fits(memory, block, offset, size):
        memory[offset : offset + size] = data


def read(model: Model, number: int, offset: int, size: int) -> None:
    block, memory = model.block(number)
    if memory is not None and fits(memory, block, offset, size):
        assert model.client.read(vector(block), size, offset) == memory[offset : offset + size]
        return
    with pytest.raises(RefusedError):
        model.client.read(vector(block), size, offset)


def fill(model: Model, number: int, offset: int, size: int) -> None:
    block, memory = model.block(number)
    model.client.post(MemsetTensor(vector(block).pack(), offset, size, 7))
    model.settle(fits(memory, block, offset, size))
    if memory is not None and fits(memory, block, offset, size):
        memory[offset : offset + size] = bytes([7]) * size


def copy(model: Model, number: int, other: int) -> None:
    """Copies the whole of what is smaller."""
    (one, source), (two, target) = model.block(number), model.block(other)
    request = CopyTensor(vector(one).pack(), vector(two).pack())
    length = vector(one).ne[0]
    if source is None or target is None or length > vector(two).ne[0]:
        with pytest.raises(RefusedError):
            model.client.call(request)
        return
    if one == two:
        return
    model.client.call(request)
    target[:length] = source[:length]


def compute(model: Model, number: int) -> None:
    block, memory = model.block(number)
    model.client.compute([3], addition(block, n=8))
    possible = memory is not None and block.size >= 96
    model.settle(possible)
    model.stored = model.blocks.index(block) if possible else None
    if possible:
        assert memory is not None
        memory[64:96] = model.client.read(vector(block), 32, 64)


def recompute(model: Model) -> None:
    model.client.recompute()
    model.settle(model.stored is not None)
    if model.stored is not None:
        block = model.blocks[model.stored]
        model.bytes_of[model.stored][64:96] = model.client.read(vector(block), 32, 64)


moves = st.one_of(
    st.tuples(st.just(alloc), st.sampled_from([0, 1, 64, 256, 4096, TOO_MUCH, (1 << 64) - 1])),
    st.tuples(st.just(alloc), st.just(4096)),
    st.tuples(st.just(free), numbers),
    st.tuples(st.just(write), numbers, offsets, sizes),
    st.tuples(st.just(read), numbers, offsets, sizes),
    st.tuples(st.just(fill), numbers, offsets, sizes),
    st.tuples(st.just(copy), numbers, numbers),
    st.tuples(st.just(compute), numbers),
    st.tuples(st.just(recompute)),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(moves, min_size=1, max_size=25))
def test_memory_is_as_the_model_says_in_any_order_of_right_and_wrong_commands(node, order):
    with Client.extended(node.endpoint) as client:
        model = Model(client)
        alloc(model, 4096)
        for move, *arguments in order:
            move(model, *arguments)
        for number, memory in model.bytes_of.items():
            size = min(256, len(memory))
            if size:
                assert client.read(vector(model.blocks[number]), size) == memory[:size]
