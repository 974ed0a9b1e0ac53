"""What the layers of a model weigh, what a token takes of them and of the KV cache. Bytes.

Pure functions over headers of GGUF files (`gguf_header`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringline.engine.gguf_header import GGUFHeader, read_headers
from ringline.errors import CallerError
from ringline.llama.gguf_reader import Value

__all__ = ["Layer", "ModelSize"]

#: libllama's default type of the KV cache is f16.
_KV_TYPE_SIZE: Final = 2
#: F32, F16, Q4_0, Q5_0, Q8_0, IQ4_NL, BF16: multiplied by llamafile's kernels (ggml-cpu,
#: sgemm.cpp). Measured with the demo model on x86-64 with AVX-512: a row of its 8-bit output matrix
#: takes 5.3 times as long as one of its Q4_1 layers and has 8 times as many weights.
_FAST_TYPES: Final = frozenset({0, 1, 2, 6, 8, 20, 30})
_BLOCK = re.compile(r"blk\.(\d+)\.")
_EXPERTS = re.compile(r"_exps\.")


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer, or the output layer.

    Attributes:
        size: its weights.
        read: what one token reads of them: all, but for the experts that are not asked.
        kv: what one token takes in the KV cache.
        work: what one token costs a CPU: the numbers that it is multiplied with, those of a type
            that ggml has a fast matrix kernel for as two thirds.
    """

    size: int
    read: int
    kv: int = 0
    work: int = 0


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A model by layers; the last one is the output layer.

    Attributes:
        layers: n_layer + 1 of them.
        n_ctx_train: context that the model was trained for, in tokens; 0: the file does not say.
    """

    layers: tuple[Layer, ...]
    n_ctx_train: int

    @property
    def kv(self) -> int:
        """What one token takes in the KV caches of all layers."""
        return sum(layer.kv for layer in self.layers)

    @classmethod
    def read(cls, path: Path) -> ModelSize:
        """Read the headers of a model's files.

        Raises:
            CallerError: a file is missing, is no GGUF file, or does not say what is needed.
        """
        return cls.of(read_headers(path))

    @classmethod
    def of(cls, headers: Sequence[GGUFHeader]) -> ModelSize:
        """Add up what the headers of all shards say; the first one has the metadata.

        Raises:
            CallerError: they do not say how many layers there are.
        """
        metadata = headers[0].metadata
        arch = str(metadata.get("general.architecture", ""))
        n_layer = _whole(metadata, f"{arch}.block_count")
        if n_layer < 1:
            raise CallerError(f"the model does not say how many layers it has ({arch}.block_count)")
        tensors = {name: size for header in headers for name, size in header.tensors.items()}
        work = {
            name: _work(count, header.types.get(name))
            for header in headers
            for name, count in header.weights.items()
        }
        kv = _kv_sizes(metadata, arch, n_layer)
        asked = _share_of_experts(metadata, arch)
        blocks = [
            Layer(
                sum(_of_block(tensors, i).values()),
                _asked(_of_block(tensors, i), asked),
                kv[i],
                _asked(_of_block(work, i), asked),
            )
            for i in range(n_layer)
        ]
        output = Layer(_output(tensors), _output(tensors), work=_output(work))
        return cls((*blocks, output), _whole(metadata, f"{arch}.context_length"))


def _work(count: int, kind: int | None) -> int:
    return count * 2 // 3 if kind in _FAST_TYPES else count


def _of_block(tensors: dict[str, int], number: int) -> dict[str, int]:
    def belongs(name: str) -> bool:
        match = _BLOCK.match(name)
        return match is not None and int(match[1]) == number

    return {name: size for name, size in tensors.items() if belongs(name)}


def _asked(tensors: dict[str, int], share: float) -> int:
    """What one token takes of a layer: of the experts their share."""
    experts = sum(size for name, size in tensors.items() if _EXPERTS.search(name))
    return sum(tensors.values()) - experts + round(experts * share)


def _output(tensors: dict[str, int]) -> int:
    """The output layer; where embeddings are tied it is a copy of their table, read as a matrix."""
    matrix = tensors.get("output.weight", tensors.get("token_embd.weight", 0))
    return matrix + tensors.get("output_norm.weight", 0)


def _share_of_experts(metadata: dict[str, Value], arch: str) -> float:
    count = _whole(metadata, f"{arch}.expert_count")
    used = _whole(metadata, f"{arch}.expert_used_count")
    return min(1.0, used / count) if count and used else 1.0


def _kv_sizes(metadata: dict[str, Value], arch: str, n_layer: int) -> list[int]:
    """What a token takes in the cache of each layer; sliding windows may take less."""
    heads = _per_layer(metadata, f"{arch}.attention.head_count", n_layer)
    kv_heads = _per_layer(metadata, f"{arch}.attention.head_count_kv", n_layer) or heads
    if not heads:
        return [0] * n_layer
    default = _whole(metadata, f"{arch}.embedding_length") // max(1, *heads)
    key = _whole(metadata, f"{arch}.attention.key_length", default)
    value = _whole(metadata, f"{arch}.attention.value_length", default)
    return [count * (key + value) * _KV_TYPE_SIZE for count in kv_heads]


def _whole(metadata: dict[str, Value], key: str, default: int = 0) -> int:
    value = metadata.get(key, default)
    return value if isinstance(value, int) else default


def _per_layer(metadata: dict[str, Value], key: str, n_layer: int) -> Sequence[int]:
    """A number for each layer: the file has one for all, or a list; empty: it has none."""
    value = metadata.get(key)
    if isinstance(value, int):
        return [value] * n_layer
    if isinstance(value, tuple) and len(value) == n_layer:
        return [int(number) for number in value]
    return []
