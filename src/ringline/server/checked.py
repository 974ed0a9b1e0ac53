"""Structures that were checked before: the same graph at other addresses needs no second look.

A model's graphs are few, and come again whenever libllama builds one anew: with each growth of the
KV cache, each batch of another size, each lane. What the checks look at, apart from memory, are
types, shapes, strides, ops, parameters, flags, and which tensor is whose source. These bytes are
the key, compared whole; ids, names, buffers and addresses are not in it. Sizes are bytes.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import replace

import numpy as np

from ringline.server.columns import Records
from ringline.server.limits import MOST_CHECKED
from ringline.server.links import Links
from ringline.server.structure import Structure
from ringline.wire.tensor import RECORD

__all__ = ["CheckedStructures", "structural_key"]

_NONE = np.zeros(0, RECORD)


def _field(name: str) -> int:
    return int(RECORD.fields[name][1])  # type: ignore[index]


#: from the first to the last of the fields that stand together in a record.
_SHAPES = slice(_field("ne"), _field("src"))
_TYPE = slice(_field("type"), _field("buffer"))
_OFFSET = slice(_field("view_offs"), _field("data"))


class CheckedStructures:
    """The last structures that were found good; threads may share it."""

    def __init__(self, most: int = MOST_CHECKED) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._known: OrderedDict[bytes, Structure] = OrderedDict()
        self._size = 0

    def find(self, key: bytes, tensors: Records) -> Structure | None:
        """What was checked under this key, for these records."""
        with self._lock:
            structure = self._known.get(key)
            if structure is None:
                return None
            self._known.move_to_end(key)
        return replace(structure, tensors=tensors)

    def add(self, key: bytes, structure: Structure) -> None:
        """Remember a structure, and forget those that were not asked for longest."""
        size = _weight(key, structure)
        if size > self._most:
            return
        with self._lock:
            if key in self._known:
                return
            self._known[key] = replace(structure, tensors=_NONE)
            self._size += size
            while self._size > self._most:
                self._size -= _weight(*self._known.popitem(last=False))

    def __len__(self) -> int:
        """How many are remembered."""
        return len(self._known)


def structural_key(tensors: Records, links: Links, *, device: str) -> bytes:
    """All that the checks of a structure look at, as bytes.

    Args:
        tensors: the records of a graph.
        links: their links.
        device: for whom: each device has its own rules.
    """
    raw = tensors.view(np.uint8).reshape(len(tensors), RECORD.itemsize)
    small = np.int32  # a frame holds fewer tensors than that
    parts = (
        np.array([len(tensors), len(links.nodes)], np.int64),
        raw[:, _TYPE],
        raw[:, _SHAPES],
        raw[:, _OFFSET],
        links.nodes.astype(small),
        links.sources.astype(small),
        links.views.astype(small),
    )
    return b"".join([part.tobytes() for part in parts]) + device.encode()


def _weight(key: bytes, structure: Structure) -> int:
    """What it takes to remember a structure."""
    columns = structure.nodes, structure.sources, structure.views, structure.kinds
    more = structure.ops, structure.ne, structure.nb, structure.sizes
    return len(key) + sum(column.nbytes for column in columns + more)
