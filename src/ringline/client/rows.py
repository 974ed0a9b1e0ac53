"""Rows by index: token ids in the place of an embedding that libllama has gathered here.

libllama keeps the embedding table on this machine, gathers the rows of a batch and hands them to
the first stage: 4 bytes a number. A node of level 5 gets the table once and gathers for itself. The
rows of the first batch are compared bit by bit; where they differ, or the node has no room, bytes
go as before.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from ringline.client.tensors import sources
from ringline.errors import PeerError
from ringline.ggml.devices import is_host_buffer
from ringline.ggml.layout import TENSOR
from ringline.ggml.memory import copy_out, record_at, view
from ringline.ggml.rows import F32, row_size
from ringline.ggml.types import tables
from ringline.wire.commands import MOST_ROW_PART
from ringline.wire.rows import DIGEST_SIZE, CheckRows, RowTable, SetRows

if TYPE_CHECKING:
    from ringline.client.node import Node

__all__ = ["Gather", "RowTables", "gather_behind"]

_log = logging.getLogger(__name__)

#: GGML_TYPE_I32.
_I32: Final = 26
Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Gather:
    """An embedding as libllama made it: rows `ids` of a table in this process.

    Attributes:
        ids: row numbers, [n] i32.
        table: address of the table's bytes.
        kind, width, n_rows: its ggml type, elements of a row, rows.
        row_size: bytes of a row.
        data, size: where the gathered rows are, f32, and their bytes.
    """

    ids: Ids
    table: int
    kind: int
    width: int
    n_rows: int
    row_size: int
    data: int
    size: int


def gather_behind(tensor: int) -> Gather | None:
    """How the ggml_tensor at `tensor` was gathered; None where it was made in another way."""
    embedding = record_at(tensor, TENSOR)[0]
    known = tables()
    if known.op_names[int(embedding["op"])] != "GET_ROWS" or int(embedding["type"]) != F32:
        return None
    table, ids = (record_at(address, TENSOR)[0] for address in sources(tensor)[:2])
    width, n_rows, *more = map(int, table["ne"])
    count, *others = map(int, ids["ne"])
    step = row_size(int(table["type"]), width)
    plain = (
        int(ids["type"]) == _I32
        and [*more, *others] == [1] * 5
        and tuple(map(int, embedding["ne"])) == (width, count, 1, 1)
        and int(table["nb"][1]) == step
        and all(is_host_buffer(int(part["buffer"])) for part in (embedding, table, ids))
    )
    if not plain or step is None:
        return None
    numbers = np.frombuffer(copy_out(int(ids["data"]), 4 * count), np.int32)
    data, size = int(embedding["data"]), 4 * width * count
    return Gather(numbers, int(table["data"]), int(table["type"]), width, n_rows, step, data, size)


class _State(Enum):
    """What is known of a table on a node."""

    UNKNOWN = auto()
    BUSY = auto()
    THERE = auto()
    REFUSED = auto()


@dataclass(slots=True)
class _Table:
    """A table of ours, by where it lies.

    Attributes:
        number: its name on the node.
        state: what the node has.
        generation: of the node's buffers when that was last looked at.
        digest: of what the node has got.
    """

    number: int
    state: _State = _State.UNKNOWN
    generation: int = -1
    digest: bytes = b""


class RowTables:
    """The tables that one node has of us; any thread may use it.

    A table is known by its address, where another model's may lie later. No model goes before its
    contexts, and they free buffers on the node: when any was freed, the table is looked at again.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        #: guards _tables; not held while a table is read or sent: other threads send bytes then.
        self._lock = threading.Lock()
        self._tables: dict[int, _Table] = {}

    def send(self, gather: Gather, record: bytes) -> bool:
        """Queue the ids in the place of the rows; False: the caller must send the rows.

        Args:
            gather: what was gathered.
            record: the tensor on the node, packed.

        Raises:
            NetworkError, PeerError: the node failed.
        """
        table = self._table(gather)
        if table is None:
            return False
        request = SetRows(record, table.number, tuple(gather.ids.tolist()))
        self._node.connection.post(request.COMMAND, request.pack())
        return True

    def _table(self, gather: Gather) -> _Table | None:
        """The table if the node has it; the first to ask sends it."""
        generation = self._node.generation
        with self._lock:
            table = self._tables.setdefault(gather.table, _Table(len(self._tables)))
            if table.state is _State.BUSY:
                return None
            if table.generation == generation:
                return table if table.state is _State.THERE else None
            before, table.state = table.state, _State.BUSY
        found = _State.REFUSED
        try:
            digest = _digest(gather.table, gather.n_rows * gather.row_size)
            if digest == table.digest:
                found = before
            elif self._bring(gather, table):
                found = _State.THERE
            table.digest = digest
        finally:
            with self._lock:
                table.state, table.generation = found, generation
        return table if found is _State.THERE else None

    def _bring(self, gather: Gather, table: _Table) -> bool:
        """Send a table, and see whether the node gathers from it what libllama has gathered."""
        main, number = self._node.main, table.number
        head = (number, gather.kind, gather.width, gather.n_rows)
        total = gather.n_rows * gather.row_size
        try:
            for offset in range(0, total, MOST_ROW_PART):
                size = min(MOST_ROW_PART, total - offset)
                part = RowTable(*head, offset)
                main.post(part.COMMAND, part.pack(), view(gather.table + offset, size))
            check = CheckRows(number, tuple(gather.ids.tolist()))
            theirs = main.call(check.COMMAND, check.pack(), size=DIGEST_SIZE)
        except PeerError as error:
            if main.error is not None:
                raise
            _log.info("embeddings go to node %s as numbers: %s", self._node.endpoint, error)
            return False
        same = theirs == _digest(gather.data, gather.size)
        if not same:
            _log.info("node %s gathers other numbers than this machine", self._node.endpoint)
        return same


def _digest(address: int, size: int) -> bytes:
    return hashlib.blake2b(view(address, size), digest_size=DIGEST_SIZE).digest()
