"""Write a GGUF model with random weights, of a given architecture and size, for tests.

    python tools/make_model.py wide.gguf --embd 4096 --layers 2 --vocab 512
    python tools/make_model.py parts.gguf --arch qwen3 --split 3     # parts-00001-of-00003.gguf ...

The text such a model writes means nothing, but it is a function of the prompt, it varies from token
to token and it never ends by itself: greedy decoding on two machines can be compared. Tensor shapes
are as numpy has them, [n_out, n_in]; the same seed gives the same file.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import math
import string
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, TokenType, quants
from numpy.typing import NDArray

from ringline.errors import CallerError, RinglineError

__all__ = ["ARCHITECTURES", "TYPES", "ModelSpec", "make_model"]

Weights: TypeAlias = NDArray[np.float32]
Shape: TypeAlias = tuple[int, ...]

#: each of them adds something of its own to the graph: see `_layer_shapes`.
ARCHITECTURES = ("llama", "qwen2", "qwen3", "gemma3")
TYPES = {
    "f32": GGMLQuantizationType.F32,
    "f16": GGMLQuantizationType.F16,
    "q8_0": GGMLQuantizationType.Q8_0,
    "q4_0": GGMLQuantizationType.Q4_0,
}

_CONTROL_TOKENS = ("<unk>", "<s>", "</s>")
_EOS = _CONTROL_TOKENS.index("</s>")
_MIN_VOCAB = len(_CONTROL_TOKENS) + 256
_SLIDING_WINDOW = 64
#: small against what the layers add, so that a tied model does not just repeat its input.
_EMBEDDING_SCALE = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """What a model looks like; the defaults are a model of about 1 MB.

    Attributes:
        arch: one of ARCHITECTURES.
        layers: number of transformer blocks.
        embd: width of the hidden state.
        heads: attention heads; divides `embd`.
        kv_heads: heads of the KV cache; divides `heads`.
        ff: width of the feed-forward network (of each expert).
        vocab: number of tokens: three control tokens, 256 bytes, then text.
        context: context length that the model says it was trained for.
        tied: whether the output layer is the token embedding; gemma3 always is.
        experts: experts per layer, two of them used per token; 0 for a dense model (llama only).
        type: type of the matrices, a key of TYPES; vectors are always f32.
        seed: of the random weights.
        split: number of files, as llama.cpp's gguf-split writes them.
    """

    arch: str = "llama"
    layers: int = 4
    embd: int = 64
    heads: int = 4
    kv_heads: int = 2
    ff: int = 128
    vocab: int = 512
    context: int = 4096
    tied: bool = False
    experts: int = 0
    type: str = "f32"
    seed: int = 0
    split: int = 1

    def check(self) -> None:
        """Refuse a model that libllama could not load.

        Raises:
            CallerError: names the field and what it must be.
        """
        block = 32 if self.type.startswith("q") else 1
        counts = (self.layers, self.embd, self.heads, self.kv_heads, self.ff, self.split)
        rules = {
            f"arch must be one of {', '.join(ARCHITECTURES)}": self.arch in ARCHITECTURES,
            f"type must be one of {', '.join(TYPES)}": self.type in TYPES,
            "layers, embd, heads, kv_heads, ff and split must be positive": min(counts) > 0,
            f"vocab must be at least {_MIN_VOCAB}": self.vocab >= _MIN_VOCAB,
            "heads must divide embd, with an even quotient": self.embd % (2 * self.heads or 1) == 0,
            "kv_heads must divide heads": self.heads % (self.kv_heads or 1) == 0,
            "experts must be 0 or at least 2": self.experts == 0 or self.experts >= 2,
            "experts need arch llama": self.experts == 0 or self.arch == "llama",
            f"type {self.type} needs embd and ff in multiples of {block}": (
                self.embd % block == 0 and self.ff % block == 0
            ),
        }
        for rule, kept in rules.items():
            if not kept:
                raise CallerError(f"no such model: {rule}")


def make_model(path: Path, spec: ModelSpec) -> Path:
    """Write a model and return the file to load: `path`, or the first of its parts.

    Args:
        path: file to write; the parts of a split model are named after it.
        spec: what to write.

    Raises:
        CallerError: the spec describes no model that libllama could load.
    """
    spec.check()
    shapes = dict(_shapes(spec))
    per_file = math.ceil(len(shapes) / spec.split)
    if math.ceil(len(shapes) / per_file) != spec.split:
        raise CallerError(f"no such model: {len(shapes)} tensors do not fill {spec.split} files")
    writer = GGUFWriter(path, spec.arch, split_max_tensors=per_file if spec.split > 1 else 0)
    _add_hyperparameters(writer, spec)
    _add_vocabulary(writer, spec)
    for name, shape in shapes.items():
        _add_tensor(writer, spec, name, shape)
    # The names depend on the number of parts, and writing empties the writer.
    first = Path(writer.format_shard_names(path)[0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return first


def _shapes(spec: ModelSpec) -> Iterator[tuple[str, Shape]]:
    """Names and shapes of all tensors, in the order of the file."""
    yield "token_embd.weight", (spec.vocab, spec.embd)
    for layer in range(spec.layers):
        for name, shape in _layer_shapes(spec).items():
            yield f"blk.{layer}.{name}", shape
    yield "output_norm.weight", (spec.embd,)
    if not (spec.tied or spec.arch == "gemma3"):
        yield "output.weight", (spec.vocab, spec.embd)


def _layer_shapes(spec: ModelSpec) -> dict[str, Shape]:
    embd, head = spec.embd, spec.embd // spec.heads
    kv = head * spec.kv_heads
    shapes: dict[str, Shape] = {
        "attn_norm.weight": (embd,),
        "attn_q.weight": (embd, embd),
        "attn_k.weight": (kv, embd),
        "attn_v.weight": (kv, embd),
        "attn_output.weight": (embd, embd),
        "ffn_norm.weight": (embd,),
    }
    if spec.arch == "qwen2":
        shapes |= {"attn_q.bias": (embd,), "attn_k.bias": (kv,), "attn_v.bias": (kv,)}
    if spec.arch in ("qwen3", "gemma3"):
        shapes |= {"attn_q_norm.weight": (head,), "attn_k_norm.weight": (head,)}
    if spec.arch == "gemma3":
        shapes |= {"post_attention_norm.weight": (embd,), "post_ffw_norm.weight": (embd,)}
    return shapes | _feed_forward_shapes(spec)


def _feed_forward_shapes(spec: ModelSpec) -> dict[str, Shape]:
    many, suffix = ((spec.experts,), "_exps") if spec.experts else ((), "")
    shapes: dict[str, Shape] = {
        f"ffn_gate{suffix}.weight": (*many, spec.ff, spec.embd),
        f"ffn_up{suffix}.weight": (*many, spec.ff, spec.embd),
        f"ffn_down{suffix}.weight": (*many, spec.embd, spec.ff),
    }
    router: dict[str, Shape] = {"ffn_gate_inp.weight": (spec.experts, spec.embd)}
    return (router if spec.experts else {}) | shapes


def _add_hyperparameters(writer: GGUFWriter, spec: ModelSpec) -> None:
    head = spec.embd // spec.heads
    writer.add_name(f"random {spec.arch}")
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.embd)
    writer.add_block_count(spec.layers)
    writer.add_feed_forward_length(spec.ff)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(spec.vocab)
    writer.add_quantization_version(2)
    if spec.arch == "gemma3":
        writer.add_sliding_window(_SLIDING_WINDOW)
    if spec.experts:
        writer.add_expert_count(spec.experts)
        writer.add_expert_used_count(2)


def _add_vocabulary(writer: GGUFWriter, spec: ModelSpec) -> None:
    """Add a SentencePiece vocabulary: any text can be written in its byte tokens."""
    n_bytes, n_text = 256, spec.vocab - _MIN_VOCAB
    tokens = [*_CONTROL_TOKENS, *(f"<0x{byte:02X}>" for byte in range(n_bytes))]
    tokens += itertools.islice(_text_tokens(), n_text)
    control = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    types = [*control, *[TokenType.BYTE] * n_bytes, *[TokenType.NORMAL] * n_text]
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    # A SentencePiece score is a log probability: earlier text tokens are merged first.
    writer.add_token_scores([-float(number) for number in range(spec.vocab)])
    writer.add_token_types(types)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(_EOS)
    writer.add_add_bos_token(True)


def _text_tokens() -> Iterator[str]:
    """Words of growing length, without end: the space, one character each, then two, ..."""
    yield "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece's space
    yield from string.ascii_letters + string.digits + string.punctuation
    for length in itertools.count(2):
        yield from map("".join, itertools.product(string.ascii_lowercase, repeat=length))


def _add_tensor(writer: GGUFWriter, spec: ModelSpec, name: str, shape: Shape) -> None:
    values = _random_weights(spec, name, shape)
    plain = len(shape) == 1 or "gate_inp" in name
    kind = GGMLQuantizationType.F32 if plain else TYPES[spec.type]
    writer.add_tensor(name, quants.quantize(values, kind), raw_dtype=kind)


def _random_weights(spec: ModelSpec, name: str, shape: Shape) -> Weights:
    """Draw weights that keep the hidden state's scale; each tensor has a stream of its own."""
    stream = np.random.default_rng([spec.seed, zlib.crc32(name.encode())])
    values = stream.standard_normal(shape, dtype=np.float32)
    mean, scale = 0.0, 1 / math.sqrt(shape[-1])
    if len(shape) == 1:
        mean, scale = float(name.endswith("norm.weight")), 0.1
    elif name == "token_embd.weight":
        scale = _EMBEDDING_SCALE
    if name in ("token_embd.weight", "output.weight"):
        # A logit of 0 is never the largest of hundreds: greedy text does not end by itself.
        values[_EOS] = 0
    return values * np.float32(scale) + np.float32(mean)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Write a GGUF model with random weights.")
    parser.add_argument("path", type=Path, help="file to write")
    choices = {"arch": ARCHITECTURES, "type": tuple(TYPES)}
    for field in dataclasses.fields(ModelSpec):
        flag = "--" + field.name.replace("_", "-")
        if isinstance(field.default, bool):
            parser.add_argument(flag, action=argparse.BooleanOptionalAction, default=field.default)
        else:
            parser.add_argument(
                flag,
                type=type(field.default),
                choices=choices.get(field.name),
                default=field.default,
                help="default: %(default)s",
            )
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Write the model that the command line describes; returns the exit code."""
    options = vars(_parser().parse_args(arguments))
    path = options.pop("path")
    try:
        print(make_model(path, ModelSpec(**options)))
    except (RinglineError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
