"""Rows by index on a node: tables that come in parts, rows written into tensors, refusals."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from ringline.errors import ProtocolError, RefusedError
from ringline.ggml.devices import Buffer, cpu_device
from ringline.ggml.rows import dequantise_rows
from ringline.server import rows
from ringline.server.buffers import Registry
from ringline.server.handlers import rows as handlers
from ringline.server.handlers.tensors import read
from ringline.server.rows import RowTables
from ringline.wire.commands import MOST_ROW_IDS, MOST_ROW_PART, RULES, Command
from ringline.wire.rows import CheckRows, RowTable, SetRows, unpack_row_table
from ringline.wire.tensor import Tensor
from tests.server_client import Block

Q4_1, Q8_1, WIDTH, N_ROWS = 3, 9, 64, 10
STEP = 40
DATA = np.random.default_rng(1).bytes(STEP * N_ROWS)
TABLE = RowTable(5, Q4_1, WIDTH, N_ROWS, 0)


def expected(*ids: int) -> bytes:
    return dequantise_rows(Q4_1, memoryview(DATA), STEP, ids)


def digest(data: bytes) -> bytes:
    return hashlib.blake2b(data, digest_size=16).digest()


class Session:
    """A session's part of a context, with one buffer: in host memory, or as if it were not."""

    def __init__(self, *, host: bool) -> None:
        self.registry = Registry(1)
        made = cpu_device().alloc_buffer(1 << 16)
        made.clear(0)
        self.buffer = self.registry.add(0, Buffer(made.address, host=host))
        self.block = Block(self.buffer.handle, self.buffer.base, self.buffer.size)
        self.tables = RowTables()
        self.session = self
        self.sampled: dict[int, int] = {}

    def last_token(self, sampler: int) -> int | None:
        return self.sampled.get(sampler)

    def set_rows(self, tensor: Tensor, *ids: int, table: int = 5) -> None:
        handlers.set_rows(SetRows(tensor.pack(), table, ids), self)

    def bytes_of(self, tensor: Tensor) -> bytes:
        region = self.registry.resolve(tensor.pack())
        return bytes(read(region, 0, region.size))


@pytest.fixture(params=[True, False], ids=["host memory", "staging memory"])
def session(request) -> Iterator[Session]:
    session = Session(host=request.param)
    session.tables.put(TABLE, memoryview(DATA))
    yield session
    session.registry.free(session.buffer.handle, 0)


# Tables


def put(tables: RowTables, offset: int, data: bytes, **changes: int) -> None:
    tables.put(replace(TABLE, offset=offset, **changes), memoryview(data))


def test_a_table_comes_in_parts_and_is_of_use_when_it_is_whole():
    tables = RowTables()
    put(tables, 0, DATA[:100])
    with pytest.raises(RefusedError, match="100 of the 400 bytes of table 5 have come"):
        tables.get(5)
    put(tables, 100, DATA[100:])
    assert bytes(tables.get(5).memory) == DATA


@pytest.mark.parametrize("offset", [99, 101, 200, 1 << 40])
def test_a_part_out_of_order_is_refused_and_the_next_one_still_taken(offset):
    tables = RowTables()
    put(tables, 0, DATA[:100])
    with pytest.raises(RefusedError, match="where 100 is next"):
        put(tables, offset, DATA[100:200])
    put(tables, 100, DATA[100:])
    assert bytes(tables.get(5).memory) == DATA


@pytest.mark.parametrize("split", [0, 100])
def test_a_part_beyond_the_end_is_refused(split):
    tables = RowTables()
    if split:
        put(tables, 0, DATA[:split])
    with pytest.raises(RefusedError, match="outside table 5 of 400 bytes"):
        put(tables, split, DATA[split:] + b"x")
    with pytest.raises(RefusedError, match="have come"):
        tables.get(5)


def test_a_part_without_a_first_one_is_refused():
    with pytest.raises(RefusedError, match="table 5 has no first part"):
        put(RowTables(), 40, DATA[40:])


@pytest.mark.parametrize("change", [{"kind": 2}, {"width": 32}, {"n_rows": 11}], ids=str)
def test_a_part_of_another_shape_is_refused(change):
    tables = RowTables()
    put(tables, 0, DATA[:100])
    with pytest.raises(RefusedError, match="names another type or shape"):
        put(tables, 100, DATA[100:], **change)


def test_a_table_begun_again_is_another_one_and_takes_nothing_from_who_reads_the_old_one():
    tables = RowTables()
    put(tables, 0, DATA)
    old = tables.get(5)
    put(tables, 0, bytes(40), n_rows=2)
    with pytest.raises(RefusedError, match="40 of the 80 bytes"):
        tables.get(5)
    assert bytes(old.memory) == DATA


IMPOSSIBLE = {
    "no type": ({"kind": 4}, "rows of type 4 cannot be turned into f32"),
    "a type out of the table": ({"kind": 1 << 31}, "cannot be turned into f32"),
    "a type that ggml cannot turn": ({"kind": Q8_1}, "rows of type 9 cannot"),
    "half a block": ({"width": 48}, "holds no whole blocks"),
    "no elements": ({"width": 0}, "rows of 0 elements"),
    "a row too wide": ({"width": (1 << 20) + 32}, "rows of 1048608 elements"),
    "no rows": ({"n_rows": 0}, "table 5 has no rows"),
    "a size that wraps": ({"width": 1 << 20, "n_rows": (1 << 32) - 1}, "has no room"),
    "more than a session may have": ({"width": 1 << 20, "n_rows": 6554}, "has no room"),
}


@pytest.mark.parametrize(("change", "rule"), IMPOSSIBLE.values(), ids=IMPOSSIBLE.keys())
def test_a_table_that_cannot_be_is_refused_before_room_is_made(change, rule, monkeypatch):
    monkeypatch.setattr(rows, "available_memory", lambda: 1 << 40)
    monkeypatch.setattr(rows.mmap, "mmap", lambda *_: pytest.fail("room was made"))
    with pytest.raises(RefusedError, match=rule):
        put(RowTables(), 0, DATA, **change)


def test_a_part_without_bytes_is_refused():
    with pytest.raises(RefusedError, match="a part of table 5 holds no bytes"):
        put(RowTables(), 0, b"")


def test_tables_have_a_limit_of_number_and_one_may_be_begun_again():
    tables = RowTables()
    for number in range(16):
        put(tables, 0, DATA, table=number)
    with pytest.raises(RefusedError, match="has 16 tables already"):
        put(tables, 0, DATA, table=16)
    put(tables, 0, DATA, table=3)


def test_tables_have_a_limit_of_bytes_together(monkeypatch):
    monkeypatch.setattr(rows, "MOST_TABLE_BYTES", 1000)
    tables = RowTables()
    put(tables, 0, DATA, table=1)
    put(tables, 0, DATA, table=2)
    with pytest.raises(RefusedError, match="400 bytes has no room: 200 are left"):
        put(tables, 0, DATA, table=3)
    put(tables, 0, DATA, table=2)


def test_a_table_takes_no_more_than_the_machine_has_free(monkeypatch):
    monkeypatch.setattr(rows, "available_memory", lambda: 399)
    with pytest.raises(RefusedError, match="399 are left"):
        put(RowTables(), 0, DATA)


def test_what_is_free_is_what_the_kernel_says(monkeypatch, tmp_path):
    assert 1 << 20 < rows.available_memory() < 1 << 50
    file = tmp_path / "meminfo"
    file.write_text("MemTotal: 900 kB\nMemAvailable:     12 kB\n")
    monkeypatch.setattr(rows, "_MEMINFO", file)
    assert rows.available_memory() == 12 << 10


# Rows


def test_rows_are_written_to_the_beginning_of_a_tensor(session):
    tensor = session.block.vector(1, 4 * WIDTH, at=256)
    session.set_rows(tensor, 9, 0, 4)
    assert session.bytes_of(tensor) == expected(9, 0, 4) + bytes(4 * WIDTH)


def test_a_piece_of_staging_memory_holds_some_of_the_rows(session, monkeypatch):
    monkeypatch.setattr(handlers, "STAGING", 4 * WIDTH * 2 + 1)
    tensor = session.block.vector(1, 5 * WIDTH)
    session.set_rows(tensor, 9, 8, 7, 6, 5)
    assert session.bytes_of(tensor) == expected(9, 8, 7, 6, 5)
    reply = handlers.check_rows(CheckRows(5, (9, 8, 7)), session)
    assert reply.digest == digest(expected(9, 8, 7))


def test_no_rows_change_nothing(session):
    tensor = session.block.vector(1, WIDTH)
    session.set_rows(tensor)
    assert session.bytes_of(tensor) == bytes(4 * WIDTH)
    assert handlers.check_rows(CheckRows(5, ()), session).digest == digest(b"")


def matrix(session: Session, *, permuted: bool) -> Tensor:
    nb = (4 * 2, 4, 512, 512) if permuted else (4, 4 * WIDTH, 512, 512)
    return replace(session.block.vector(1, 1), ne=(WIDTH, 2, 1, 1), nb=nb)


def test_a_matrix_without_gaps_takes_rows(session):
    tensor = matrix(session, permuted=False)
    session.set_rows(tensor, 1, 2)
    assert session.bytes_of(tensor) == expected(1, 2)


REFUSED = {
    "a permuted tensor": (lambda s: matrix(s, permuted=True), (1,), "contiguous tensor of f32"),
    "a tensor of f16": (
        lambda s: replace(s.block.vector(1, 4 * WIDTH), type=1, nb=(2, 8, 8, 8)),
        (1,),
        "contiguous tensor of f32",
    ),
    "a tensor too small": (lambda s: s.block.vector(1, 2 * WIDTH - 1), (1, 2), "are outside its"),
    "a tensor outside": (lambda s: s.block.vector(1, 1 << 20), (1,), "are outside its buffer"),
    "a buffer that is none": (
        lambda s: replace(s.block.vector(1, WIDTH), buffer=7),
        (1,),
        "no buffer 0x7",
    ),
    "an id beyond the table": (
        lambda s: s.block.vector(1, 2 * WIDTH),
        (9, 10),
        "row 10 is not in table 5, which has 10 rows",
    ),
    "a sampler that is none": (
        lambda s: s.block.vector(1, 2 * WIDTH),
        (9, -4),
        "id -4 names the last token of sampler 3, which has none here",
    ),
}


@pytest.mark.parametrize(("make", "ids", "rule"), REFUSED.values(), ids=REFUSED.keys())
def test_rows_that_cannot_be_written_are_refused_and_nothing_is_written(session, make, ids, rule):
    with pytest.raises(RefusedError, match=rule):
        session.set_rows(make(session), *ids)
    assert session.bytes_of(session.block.vector(9, 1 << 14)) == bytes(1 << 16)


@pytest.mark.parametrize(("ids", "rule"), [((10,), "row 10"), ((-1,), "sampler 0")])
def test_a_check_refuses_the_ids_that_set_rows_refuses(session, ids, rule):
    with pytest.raises(RefusedError, match=rule):
        handlers.check_rows(CheckRows(5, ids), session)


def test_a_table_that_is_none_is_refused(session):
    with pytest.raises(RefusedError, match="no table 6"):
        session.set_rows(session.block.vector(1, WIDTH), 1, table=6)
    with pytest.raises(RefusedError, match="no table 6"):
        handlers.check_rows(CheckRows(6, (1,)), session)


def test_a_negative_id_is_the_last_token_of_a_sampler(session):
    session.sampled = {2: 7}
    tensor = session.block.vector(1, 2 * WIDTH)
    session.set_rows(tensor, 1, -3)
    assert session.bytes_of(tensor) == expected(1, 7)


def test_a_sampled_token_beyond_the_table_is_refused(session):
    session.sampled = {0: N_ROWS}
    with pytest.raises(RefusedError, match="row 10 is not in table 5"):
        session.set_rows(session.block.vector(1, WIDTH), -1)


# Messages


@pytest.mark.parametrize("request_", [SetRows(bytes(296), 1, (0, -2, 7)), CheckRows(3, (5,))])
def test_ids_come_back_as_they_were(request_):
    raw = request_.pack()
    assert type(request_).unpack(memoryview(raw)) == request_
    for wrong in (raw[:-1], raw + bytes(4), raw[:4]):
        with pytest.raises(ProtocolError):
            type(request_).unpack(wrong)


def test_the_largest_messages_are_those_that_the_rules_allow():
    part = RowTable(1, 0, 1, 1, 0).pack() + bytes(MOST_ROW_PART)
    assert len(part) == RULES[Command.ROW_TABLE].most
    assert len(unpack_row_table(memoryview(part))[1]) == MOST_ROW_PART
    ids = (0,) * MOST_ROW_IDS
    assert len(SetRows(bytes(296), 1, ids).pack()) == RULES[Command.SET_ROWS].most
    assert len(CheckRows(1, ids).pack()) == RULES[Command.CHECK_ROWS].most
