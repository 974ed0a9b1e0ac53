"""Write a tiny GGUF model of any architecture that libllama knows, with random weights, for tests.

    python tools/any_model.py mamba2.gguf mamba2

libllama itself says which tensors a model has: it is given the hyperparameters alone
(llama_model_init_from_user), and its list of names and shapes is filled with numbers. So no table
of tensors is kept here, and an architecture costs a line at most. The vocabulary is numbers without
text. The same architecture gives the same file.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import sys
import tempfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter
from numpy.typing import NDArray

from ringline.errors import CallerError, RinglineError
from ringline.ggml.layout import TENSOR
from ringline.ggml.memory import record_at
from ringline.llama.library import libllama

__all__ = ["make_any_model"]

Shape = tuple[int, ...]

_VOCAB = 128
_CONTEXT = 256
#: attention through a small latent state: one head, keys of two parts.
_LATENT = ("deepseek2", "deepseek32", "minicpm3", "kimi-linear")
#: hybrids say for each layer whether it has attention: every second one has here.
_HYBRID = ("jamba", "granitehybrid", "lfm2", "kimi-linear")
#: linear attention with heads of their own.
_DELTA = ("qwen3next", "qwen35", "qwen35moe")
_WITH_EXPERTS = ("moe", "deepseek", "dbrx", "gpt-oss", "jamba", "llama4", "qwen3next", "kimi")


@dataclass(frozen=True, slots=True)
class _Sizes:
    """What all hyperparameters are made of."""

    embd: int = 128
    heads: int = 2
    ff: int = 192
    layers: int = 2

    @classmethod
    def of(cls, arch: str) -> _Sizes:
        if arch in _LATENT:
            return cls(heads=1)
        return cls(layers=4) if arch == "llama4" else cls()


def make_any_model(path: Path, arch: str) -> Path:
    """Write a model.

    Args:
        path: file to write.
        arch: an architecture as GGUF files name it.

    Raises:
        CallerError: libllama knows no such model, or wants hyperparameters that are not set here.
    """
    with tempfile.TemporaryDirectory() as folder:
        bare = Path(folder) / "bare.gguf"
        _write(bare, arch, {})
        shapes = _tensors_of(bare)
    _write(path, arch, shapes)
    return path


def _write(path: Path, arch: str, shapes: dict[str, Shape]) -> None:
    writer = GGUFWriter(path, arch)
    for name, value in _hyperparameters(arch).items():
        _add(writer, f"{arch}.{name}", value)
    for name in ("alpha_n", "alpha_p", "beta", "eps"):
        writer.add_array(f"xielu.{name}", [0.5] * _Sizes.of(arch).layers)
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    for name, shape in shapes.items():
        writer.add_tensor(name, _weights(name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add(writer: GGUFWriter, name: str, value: object) -> None:
    if isinstance(value, bool):
        writer.add_bool(name, value)
    elif isinstance(value, int):
        writer.add_uint32(name, value)
    elif isinstance(value, float):
        writer.add_float32(name, value)
    else:
        assert isinstance(value, list)
        writer.add_array(name, value)


def _hyperparameters(arch: str) -> dict[str, object]:
    """All that any architecture asks for; what it does not know it does not read."""
    sizes = _Sizes.of(arch)
    head = sizes.embd // sizes.heads
    values: dict[str, object] = {
        "vocab_size": _VOCAB,
        "context_length": _CONTEXT,
        "embedding_length": sizes.embd,
        "block_count": sizes.layers,
        "leading_dense_block_count": 1,
        "feed_forward_length": sizes.ff,
        "use_parallel_residual": False,
        "logit_scale": 1.0,
        "full_attention_interval": 2,
        "interleave_moe_layer_step": 2,
        "shortconv.l_cache": 3,
        "rope.dimension_count": head,
        "rope.dimension_sections": [head // 4] * 4,
        "final_logit_softcapping": 30.0,
        "attn_logit_softcapping": 50.0,
        "token_shift_count": 2 if arch in ("rwkv6", "rwkv7") else 1,
        "time_mix_extra_dim": 32,
        "time_decay_extra_dim": 64,
        "wkv.head_size": 64,
    }
    return values | _attention(arch, sizes) | _state(arch, sizes) | _experts(arch, sizes)


def _attention(arch: str, sizes: _Sizes) -> dict[str, object]:
    head = sizes.embd // sizes.heads
    values: dict[str, object] = {
        "head_count": sizes.heads,
        "head_count_kv": sizes.heads,
        "key_length": head,
        "value_length": head,
        "max_alibi_bias": 8.0,
        "clamp_kqv": 1.0,
        "layer_norm_epsilon": 1e-5,
        "layer_norm_rms_epsilon": 1e-5,
        "group_norm_epsilon": 1e-5,
        "group_norm_groups": 8,
        "causal": True,
        "relative_buckets_count": 8,
        "sliding_window": 32,
    }
    ranks = ("q_lora", "kv_lora", "decay_lora", "iclr_lora", "value_residual_mix_lora", "gate_lora")
    values |= {f"{name}_rank": 96 if name.endswith("v_lora") else 32 for name in ranks}
    if arch in _LATENT:
        values |= {"key_length": 160, "value_length": 96}
        values |= {"key_length_mla": 128, "value_length_mla": 64} if arch != "minicpm3" else {}
    if arch in _HYBRID:
        values["head_count"] = [sizes.heads] * sizes.layers
        values["head_count_kv"] = [sizes.heads * (layer % 2) for layer in range(sizes.layers)]
    return {f"attention.{name}": value for name, value in values.items()} | (
        {"rope.dimension_count": 64} if arch in _LATENT else {}
    )


def _state(arch: str, sizes: _Sizes) -> dict[str, object]:
    inner = 2 * sizes.embd
    return {
        "ssm.conv_kernel": 4,
        "ssm.state_size": 64 if arch in _DELTA else 32,
        "ssm.inner_size": inner,
        "ssm.time_step_rank": inner // 64,
        "ssm.group_count": 0 if arch in ("mamba", "jamba") else 2,
        "ssm.dt_b_c_rms": False,
        "kda.head_dim": 64,
    }


def _experts(arch: str, sizes: _Sizes) -> dict[str, object]:
    if not any(word in arch for word in _WITH_EXPERTS):
        return {}
    return {
        "expert_count": 4,
        "expert_used_count": 2,
        "expert_shared_count": 1,
        "expert_gating_func": 2,
        "expert_weights_scale": 1.0,
        "expert_feed_forward_length": sizes.ff,
        "expert_shared_feed_forward_length": sizes.ff,
    }


class _GgufOptions(ctypes.Structure):
    """struct gguf_init_params."""

    _fields_ = (("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p))


def _tensors_of(bare: Path) -> dict[str, Shape]:
    """Names and shapes (as numpy has them) of the tensors that libllama makes for a model."""
    llama = libllama()
    folder = Path(str(llama.__file__)).parent / "lib"
    base: Any = ctypes.CDLL(str(folder / "libggml-base.so"))
    library: Any = ctypes.CDLL(str(folder / "libllama.so"))
    base.gguf_init_from_file.restype = ctypes.c_void_p
    base.gguf_init_from_file.argtypes = (ctypes.c_char_p, _GgufOptions)
    base.gguf_free.argtypes = (ctypes.c_void_p,)
    shapes: dict[str, Shape] = {}

    def take_note(tensor: int, _: int) -> None:
        record = record_at(tensor, TENSOR)[0]
        name = bytes(record["name"]).split(b"\0", 1)[0].decode()
        ne = [int(count) for count in record["ne"]]
        while len(ne) > 1 and ne[-1] == 1:
            ne.pop()
        shapes[name] = tuple(reversed(ne))

    note = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(take_note)
    start = library.llama_model_init_from_user
    options = llama.llama_model_default_params()
    options.n_gpu_layers = 0
    start.restype = ctypes.c_void_p
    start.argtypes = (ctypes.c_void_p, type(note), ctypes.c_void_p, type(options))
    metadata = base.gguf_init_from_file(str(bare).encode(), _GgufOptions(True, None))
    model = start(metadata, note, None, options)
    base.gguf_free(metadata)
    if not model:
        raise CallerError(f"libllama makes no model of {bare.name}: RINGLINE_DEBUG=1 says why")
    llama.llama_model_free(model)
    return shapes


def _weights(name: str, shape: Shape) -> NDArray[np.float32]:
    """Numbers that keep the hidden state's scale; each tensor has a stream of its own."""
    stream = np.random.default_rng(zlib.crc32(name.encode()))
    values = stream.standard_normal(shape, dtype=np.float32) / np.float32(math.sqrt(shape[-1]))
    if "norm" in name and name.endswith("weight"):
        values = values * np.float32(0.1) + np.float32(1)
    elif "ssm_a" in name:  # the rate at which a state decays
        values = -np.abs(values) - np.float32(0.1)
    return values.astype(np.float32)


def main(arguments: list[str] | None = None) -> int:
    """Write the model that the command line names; returns the exit code."""
    parser = argparse.ArgumentParser(description="Write a tiny GGUF model of an architecture.")
    parser.add_argument("path", type=Path, help="file to write")
    parser.add_argument("arch", help="architecture, as GGUF files name it")
    options = parser.parse_args(arguments)
    try:
        print(make_any_model(options.path, options.arch))
    except (RinglineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
