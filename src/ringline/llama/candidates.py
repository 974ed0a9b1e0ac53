"""The tokens that a chain of samplers may still choose from, as C reads and re-orders them."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringline.llama.library import libllama

__all__ = ["Candidates", "candidates"]

#: llama_token_data.
_ENTRY = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])
_RAW_ENTRY = np.dtype(f"V{_ENTRY.itemsize}")


class Candidates:
    """A llama_token_data_array with room for a whole vocabulary, to be filled again and again."""

    def __init__(self, n_vocab: int) -> None:
        self._ids = np.arange(n_vocab, dtype=np.int32)
        self._entries = np.zeros(n_vocab, _ENTRY)
        library = libllama()
        self._pointer = self._entries.ctypes.data_as(library.llama_token_data_p)
        self._array = library.llama_token_data_array(self._pointer, n_vocab, -1, False)

    def __len__(self) -> int:
        return int(self._array.size)

    def fill(self, logits: NDArray[np.float32]) -> None:
        """Begin with all tokens and their logits, [n_vocab] f32.

        Their probabilities stay as they are: each sampler that reads them computes them before.
        """
        self._entries["id"] = self._ids
        self._entries["logit"] = logits
        self._reset(len(self._entries))

    def _reset(self, size: int) -> None:
        # A sampler may have moved the beginning, too.
        self._array.data = self._pointer
        self._array.size = size
        self._array.selected = -1
        self._array.sorted = False

    def drop_forbidden(self) -> None:
        """Leave out the tokens whose logit is -inf, before anything has been sorted or left out.

        Several of libllama's samplers take the logarithm of a probability: they compute nonsense
        where it is 0.
        """
        logits = self._entries["logit"][: len(self)]
        if logits.min() > -np.inf:
            return
        places = np.flatnonzero(logits > -np.inf)
        # As bytes: by its fields, a copy of 150,000 entries takes 8 ms.
        raw = self._entries.view(_RAW_ENTRY)
        raw[: len(places)] = raw[places]
        self._reset(len(places))

    @property
    def array(self) -> Any:
        """What C is given."""
        return ctypes.byref(self._array)

    @property
    def chosen(self) -> int:
        """The token that a chain has selected."""
        return int(self._array.data[self._array.selected].id)


class _Local(threading.local):
    found: Candidates | None = None
    n_vocab = -1


_local = _Local()


def candidates(n_vocab: int) -> Candidates:
    """This thread's candidates of a vocabulary of so many tokens.

    They are made once for all samplers of a thread: a thread chooses one token at a time, and the
    largest vocabularies take 3 MB.
    """
    if _local.found is None or _local.n_vocab != n_vocab:
        _local.found, _local.n_vocab = Candidates(n_vocab), n_vocab
    return _local.found
