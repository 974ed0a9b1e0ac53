"""The header of a GGUF file: its metadata and where each tensor lies. Sizes are bytes.

The weights are not touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ringline.llama.gguf_file import check_model_file
from ringline.llama.gguf_reader import GGUFReader, Value, opened

__all__ = ["GGUFHeader", "read_headers"]

_DEFAULT_ALIGNMENT: Final = 32


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """One file.

    Attributes:
        metadata: values by key; arrays of strings and long arrays are left out.
        tensors: name -> bytes it takes in the file, up to 31 of padding included.
        weights: name -> how many numbers it holds.
        types: name -> ggml_type of these numbers.
    """

    metadata: dict[str, Value]
    tensors: dict[str, int]
    weights: dict[str, int] = field(default_factory=dict)
    types: dict[str, int] = field(default_factory=dict)


def read_headers(path: Path) -> list[GGUFHeader]:
    """Read the headers of a model's file, or of all its shards.

    Raises:
        CallerError: a file is missing, is no GGUF file, or its header makes no sense.
    """
    return [_read(shard) for shard in check_model_file(path)]


def _read(path: Path) -> GGUFHeader:
    with opened(path) as reader:
        metadata: dict[str, Value] = {}
        for _ in range(reader.n_values):
            key, value = reader.string(), reader.value()
            if value is not None:
                metadata[key] = value
        offsets: dict[str, int] = {}
        weights: dict[str, int] = {}
        types: dict[str, int] = {}
        for _ in range(reader.n_tensors):
            name = reader.string()
            weights[name], types[name], offsets[name] = _tensor(reader)
        return GGUFHeader(metadata, _sizes(reader, offsets, metadata), weights, types)


def _tensor(reader: GGUFReader) -> tuple[int, int, int]:
    """How many numbers a tensor has, of which type, and where they lie."""
    shape = [reader.number("<Q") for _ in range(reader.number("<I"))]
    return math.prod(shape), reader.number("<I"), reader.number("<Q")


def _sizes(
    reader: GGUFReader, offsets: dict[str, int], metadata: dict[str, Value]
) -> dict[str, int]:
    """A tensor ends where the next one begins, the last one with the file."""
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        raise ValueError(f"alignment {alignment!r}")
    start = -(-reader.place // alignment) * alignment
    names = sorted(offsets, key=offsets.__getitem__)
    ends = _following([offsets[name] for name in names], len(reader.data) - start)
    return {name: end - offsets[name] for name, end in zip(names, ends, strict=True)}


def _following(offsets: Sequence[int], end: int) -> list[int]:
    ends = [*offsets[1:], end]
    if any(after < before for before, after in zip(offsets, ends, strict=False)):
        raise ValueError("a tensor lies beyond the end of the file")
    return ends
