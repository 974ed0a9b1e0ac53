"""The tokens of one decode: owned arrays that a llama_batch points into, to be filled again.

Positions count from 0 in each sequence. numpy owns the memory, so nothing has to be freed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringline.errors import CallerError
from ringline.llama.library import libllama

__all__ = ["Batch"]

_LARGEST = 2**31 - 1


class Batch:
    """Up to `capacity` tokens, each at a position of one or more sequences."""

    def __init__(self, capacity: int, *, n_seq_max: int = 1) -> None:
        """Make room.

        Args:
            capacity: most tokens; a context takes at most its n_batch in one decode.
            n_seq_max: most sequences that one token may belong to.

        Raises:
            CallerError: `capacity` or `n_seq_max` is less than 1.
        """
        if capacity < 1 or n_seq_max < 1:
            raise CallerError(f"a batch of {capacity} tokens and {n_seq_max} sequences holds none")
        self.capacity = capacity
        self.n_seq_max = n_seq_max
        self._count = 0
        self._tokens = np.zeros(capacity, np.int32)
        self._positions = np.zeros(capacity, np.int32)
        self._seq_counts = np.zeros(capacity, np.int32)
        self._seq_ids = np.zeros((capacity, n_seq_max), np.int32)
        self._logits = np.zeros(capacity, np.int8)
        # llama_batch.seq_id is an array of pointers: one to each row of _seq_ids.
        rows = self._seq_ids.ctypes.data + np.arange(capacity) * self._seq_ids.strides[0]
        self._seq_rows = rows.astype(np.uintp)
        self._struct = self._build_struct()

    def _build_struct(self) -> Any:
        struct = libllama().llama_batch()
        types = {name: kind for name, kind, *_ in struct._fields_}
        arrays: dict[str, NDArray[Any]] = {
            "token": self._tokens,
            "pos": self._positions,
            "n_seq_id": self._seq_counts,
            "seq_id": self._seq_rows,
            "logits": self._logits,
        }
        for name, array in arrays.items():
            setattr(struct, name, ctypes.cast(array.ctypes.data, types[name]))
        return struct

    def __len__(self) -> int:
        return self._count

    def clear(self) -> None:
        """Forget all tokens; the room stays."""
        self._count = 0

    def add(
        self, token: int, position: int, seq_ids: Sequence[int] = (0,), *, logits: bool = False
    ) -> int:
        """Add a token and return its index in the batch.

        Args:
            token: 0 .. n_vocab - 1.
            position: its position, the same in all its sequences.
            seq_ids: the sequences that it belongs to.
            logits: whether the decode computes a row of logits for it.

        Raises:
            CallerError: the batch is full, or a number is out of range.
        """
        if not 1 <= len(seq_ids) <= self.n_seq_max:
            raise CallerError(
                f"a token of this batch belongs to 1 to {self.n_seq_max} sequences, "
                f"not {len(seq_ids)}"
            )
        index = self._reserve(1, position)
        _check_range("token", token)
        for seq_id in seq_ids:
            _check_range("sequence", seq_id)
        self._tokens[index] = token
        self._positions[index] = position
        self._seq_counts[index] = len(seq_ids)
        self._seq_ids[index, : len(seq_ids)] = seq_ids
        self._logits[index] = logits
        self._count += 1
        return index

    def add_run(
        self,
        tokens: Sequence[int],
        position: int,
        seq_id: int = 0,
        *,
        logits_last: bool = False,
        all_rows: bool = False,
    ) -> int:
        """Add consecutive tokens of one sequence and return the index of the last one.

        Args:
            tokens: at least one.
            position: position of the first.
            seq_id: the sequence.
            logits_last: whether the decode computes a row of logits for the last token.
            all_rows: whether every token has a row, as a context that pools wants it.

        Raises:
            CallerError: there are none, they do not fit, or a number is out of range.
        """
        if not tokens:
            raise CallerError("a run of tokens holds at least one")
        start = self._reserve(len(tokens), position)
        _check_range("token", min(tokens))
        _check_range("token", max(tokens))
        _check_range("sequence", seq_id)
        end = start + len(tokens)
        self._tokens[start:end] = tokens
        self._positions[start:end] = np.arange(position, position + len(tokens))
        self._seq_counts[start:end] = 1
        self._seq_ids[start:end, 0] = seq_id
        self._logits[start:end] = all_rows
        self._logits[end - 1] = logits_last or all_rows
        self._count = end
        return end - 1

    def first_positions(self) -> dict[int, int]:
        """Sequence id -> the first of its positions in this batch."""
        first: dict[int, int] = {}
        for index in range(self._count):
            position = int(self._positions[index])
            for seq_id in self._seq_ids[index, : self._seq_counts[index]].tolist():
                first[seq_id] = min(position, first.get(seq_id, position))
        return first

    def _reserve(self, n_tokens: int, position: int) -> int:
        if n_tokens > self.capacity - self._count:
            raise CallerError(
                f"a batch of {self.capacity} tokens has room for {self.capacity - self._count} "
                f"more, not {n_tokens}"
            )
        _check_range("position", position)
        _check_range("position", position + n_tokens)
        return self._count

    @property
    def struct(self) -> Any:
        """The llama_batch as C reads it; valid while this object lives and is not changed."""
        self._struct.n_tokens = self._count
        return self._struct


def _check_range(what: str, number: int) -> None:
    # libllama indexes with these before it checks them.
    if not 0 <= number <= _LARGEST:
        raise CallerError(f"{what} {number} is out of range")
