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
from ringline.client.thin import LEVEL
from ringline.errors import PeerError
from ringline.ggml.devices import is_host_buffer
from ringline.ggml.layout import TENSOR
from ringline.ggml.memory import copy_out, record_at, view
from ringline.ggml.types import tables
from ringline.wire.rows import DIGEST_SIZE, CheckRows, RowTable, SetRows

if TYPE_CHECKING:
    from ringline.client.node import Node

__all__ = ["Gather", "RowTables", "gather_behind"]

_log = logging.getLogger(__name__)

#: bytes of a table in one message.
_PART: Final = 8 << 20
_F32: Final = 0
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
    if known.op_names[int(embedding["op"])] != "GET_ROWS" or int(embedding["type"]) != _F32:
        return None
    table, ids = (record_at(address, TENSOR)[0] for address in sources(tensor)[:2])
    width, n_rows, *more = map(int, table["ne"])
    count, *others = map(int, ids["ne"])
    row_size = int(known.size[int(table["type"])]) * (width // int(known.block[int(table["type"])]))
    plain = (
        int(ids["type"]) == _I32
        and [*more, *others] == [1] * 5
        and tuple(map(int, embedding["ne"])) == (width, count, 1, 1)
        and int(table["nb"][1]) == row_size
        and all(is_host_buffer(int(part["buffer"])) for part in (embedding, table, ids))
    )
    if not plain:
        return None
    numbers = np.frombuffer(copy_out(int(ids["data"]), 4 * count), np.int32)
    data, size = int(embedding["data"]), 4 * width * count
    return Gather(
        numbers, int(table["data"]), int(table["type"]), width, n_rows, row_size, data, size
    )


class _State(Enum):
    """What is known of a table on a node."""

    NEW = auto()
    SENDING = auto()
    THERE = auto()
    REFUSED = auto()


class RowTables:
    """The tables that one node has of us; any thread may use it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        #: guards _states; not held while a table is being sent: other threads send bytes meanwhile.
        self._lock = threading.Lock()
        self._states: dict[int, _State] = {}
        self._numbers: dict[int, int] = {}

    def send(self, gather: Gather, record: bytes) -> bool:
        """Queue the ids in the place of the rows; False: the caller must send the rows.

        Args:
            gather: what was gathered.
            record: the tensor on the node, packed.

        Raises:
            NetworkError, PeerError: the node failed.
        """
        if self._node.level < LEVEL or not self._there(gather):
            return False
        request = SetRows(record, self._numbers[gather.table], tuple(gather.ids.tolist()))
        self._node.connection.post(request.COMMAND, request.pack())
        return True

    def _there(self, gather: Gather) -> bool:
        """Whether the node has the table; the first to ask sends it."""
        with self._lock:
            state = self._states.get(gather.table, _State.NEW)
            if state is _State.NEW:
                self._states[gather.table] = _State.SENDING
                self._numbers[gather.table] = len(self._numbers)
        if state is not _State.NEW:
            return state is _State.THERE
        found = _State.REFUSED
        try:
            if self._bring(gather):
                found = _State.THERE
        finally:
            with self._lock:
                self._states[gather.table] = found
        return found is _State.THERE

    def _bring(self, gather: Gather) -> bool:
        """Send a table, and see whether the node gathers from it what libllama has gathered."""
        main, number = self._node.main, self._numbers[gather.table]
        head = (number, gather.kind, gather.width, gather.n_rows)
        total = gather.n_rows * gather.row_size
        try:
            for offset in range(0, total, _PART):
                size = min(_PART, total - offset)
                part = RowTable(*head, offset)
                main.post(part.COMMAND, part.pack(), view(gather.table + offset, size))
            check = CheckRows(number, tuple(gather.ids.tolist()))
            theirs = main.call(check.COMMAND, check.pack(), size=DIGEST_SIZE)
        except PeerError as error:
            if main.error is not None:
                raise
            _log.info("embeddings go to node %s as numbers: %s", self._node.endpoint, error)
            return False
        ours = hashlib.blake2b(view(gather.data, gather.size), digest_size=DIGEST_SIZE).digest()
        if theirs != ours:
            _log.info("node %s gathers other numbers than this machine", self._node.endpoint)
        return theirs == ours
