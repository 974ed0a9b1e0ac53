"""Level 5, rows by index: a table that the session holds, and rows of it written as f32."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

from ringline.errors import RefusedError
from ringline.ggml.rows import F32, dequantise_into
from ringline.ggml.transfer import set_tensor as write_data
from ringline.server.context import Context
from ringline.server.limits import STAGING
from ringline.server.regions import Region
from ringline.server.rows import Table
from ringline.wire.messages import Message
from ringline.wire.rows import DIGEST_SIZE, CheckRows, RowTable, SetRows

_FLOAT: Final = 4


def row_table(request: tuple[RowTable, memoryview], context: Context) -> None:
    """Take a part of a table."""
    context.session.tables.put(*request)


def set_rows(request: SetRows, context: Context) -> None:
    """Write rows to the beginning of a tensor: in place in a host buffer, else piece by piece."""
    region = context.registry.resolve(request.tensor)
    table = context.session.tables.get(request.table)
    ids = _rows(request.ids, table, context)
    if not region.is_contiguous(F32):
        raise RefusedError("rows can be written to a contiguous tensor of f32 alone")
    place = region.part(0, _FLOAT * table.width * len(ids))
    if place is not None:
        dequantise_into(table.kind, table.width, table.memory, ids, place)
    else:
        _write_staged(region, table, ids)


def check_rows(request: CheckRows, context: Context) -> Message:
    """The digest of rows as they would be written."""
    table = context.session.tables.get(request.table)
    digest = hashlib.blake2b(digest_size=DIGEST_SIZE)
    for piece in _pieces(table, _rows(request.ids, table, context)):
        digest.update(piece)
    return CheckRows.Reply(digest.digest())


def _rows(ids: Sequence[int], table: Table, context: Context) -> Sequence[int]:
    """The rows that ids name.

    Raises:
        RefusedError: one is not in the table, or names a sampler that has no token.
    """
    if not ids:
        return ids
    if min(ids) < 0:
        ids = [_sampled(-1 - id_, context) if id_ < 0 else id_ for id_ in ids]
    if max(ids) >= table.n_rows:
        raise RefusedError(
            f"row {max(ids)} is not in table {table.number}, which has {table.n_rows} rows"
        )
    return ids


def _sampled(sampler: int, context: Context) -> int:
    token = context.last_token(sampler)
    if token is None:
        raise RefusedError(
            f"id {-1 - sampler} names the last token of sampler {sampler}, which has none here"
        )
    return token


def _write_staged(region: Region, table: Table, ids: Sequence[int]) -> None:
    offset = 0
    for piece in _pieces(table, ids):
        write_data(region.struct(), piece, len(piece), offset)
        offset += len(piece)


def _pieces(table: Table, ids: Sequence[int]) -> Iterator[bytearray]:
    """Rows as f32, in pieces of at most STAGING bytes, or of one row."""
    size = _FLOAT * table.width
    step = max(1, STAGING // size)
    for start in range(0, len(ids), step):
        some = ids[start : start + step]
        piece = bytearray(size * len(some))
        dequantise_into(table.kind, table.width, table.memory, some, memoryview(piece))
        yield piece
