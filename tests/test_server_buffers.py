"""The registry of a session: names, addresses, lifetime. Pure: no process, no socket."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from ringline.errors import RefusedError
from ringline.server import buffers
from ringline.server.buffers import Registry
from ringline.wire.tensor import Tensor

SESSION = 0xABCD


@dataclass
class FakeBuffer:
    """A buffer without ggml that knows whether it has been closed."""

    size: int = 4096
    address: int = 0x1000
    base: int = 0x2000
    host: bool = True
    closed: bool = False
    memory: bytearray = field(default_factory=bytearray)

    def view(self, _: int, size: int) -> memoryview:
        return memoryview(bytearray(size))

    def close(self) -> None:
        self.closed = True


def add(registry: Registry, **fields: object) -> tuple[FakeBuffer, buffers.SessionBuffer]:
    fake = FakeBuffer(**fields)
    return fake, registry.add(0, fake)


def record(buffer: buffers.SessionBuffer, n: int = 16) -> bytes:
    whole = 4 * n
    return Tensor(
        1, 0, buffer.handle, (n, 1, 1, 1), (4, whole, whole, whole), data=buffer.base
    ).pack()


def test_handles_carry_the_session_and_are_distinct():
    registry = Registry(SESSION)
    handles = {add(registry)[1].handle for _ in range(100)}
    assert len(handles) == 100
    assert {handle >> 32 for handle in handles} == {SESSION}
    assert all(handle & 0xFFFFFFFF for handle in handles)


def test_addresses_are_aligned_apart_and_never_used_twice():
    registry = Registry(SESSION)
    last = 0
    for size in (1, 4096, 1 << 30, 5):
        _, buffer = add(registry, size=size, host=False)
        assert buffer.base % 4096 == 0
        assert buffer.base > last
        last = buffer.base + size
        registry.free(buffer.handle, 1)


def test_too_many_buffers_are_no_room(monkeypatch):
    monkeypatch.setattr(buffers, "MOST_BUFFERS", 2)
    registry = Registry(SESSION)
    add(registry)
    add(registry)
    fake, added = add(registry)
    assert added is None
    assert fake.closed


def test_a_buffer_beyond_all_addresses_is_no_room():
    fake, added = add(Registry(SESSION), size=1 << 63, host=False)
    assert added is None
    assert fake.closed


def test_a_freed_buffer_is_forgotten_with_all_that_was_known_of_it():
    registry = Registry(SESSION)
    fake, buffer = add(registry)
    raw = record(buffer)
    assert registry.resolve(raw) is registry.resolve(raw)
    generation = registry.generation
    registry.free(buffer.handle, 1)
    assert fake.closed
    assert registry.generation != generation
    assert registry.find(buffer.handle) is None
    with pytest.raises(RefusedError):
        registry.resolve(raw)
    with pytest.raises(RefusedError):
        registry.free(buffer.handle, 1)


def test_memory_stays_while_another_connection_is_inside_a_command():
    registry = Registry(SESSION)
    fake, buffer = add(registry)
    registry.enter(1)
    registry.enter(2)
    registry.free(buffer.handle, 1)
    assert not fake.closed
    with pytest.raises(RefusedError):
        registry.get(buffer.handle)
    registry.leave(1)
    registry.enter(3)
    assert not fake.closed
    registry.leave(2)
    assert fake.closed


def test_connections_between_commands_delay_nothing():
    registry = Registry(SESSION)
    fake, buffer = add(registry)
    registry.enter(2)
    registry.leave(2)
    registry.enter(1)
    registry.free(buffer.handle, 1)
    assert fake.closed


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(buffers, "MOST_REGIONS", 8)
    registry = Registry(SESSION)
    _, buffer = add(registry)
    for n in range(1, 50):
        assert registry.resolve(record(buffer, n)).size == 4 * n
    assert len(registry._regions) <= 8


def test_the_table_lists_buffers_by_handle():
    registry = Registry(SESSION)
    assert len(registry.table().handles) == 0
    added = [add(registry)[1] for _ in range(5)]
    table = registry.table()
    assert table is registry.table()
    assert table.handles.tolist() == sorted(buffer.handle for buffer in added)
    registry.free(added[0].handle, 1)
    assert len(registry.table().handles) == 4
