"""A BERT of 0.6 MB with random weights: its vectors mean nothing, but they are vectors."""

from __future__ import annotations

import string
import zlib
from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

EMBD, HEADS, FF, LAYERS = 64, 4, 128, 4
#: tokens that it was trained for: libllama has a row for each position and no more.
CONTEXT = 96
_CONTROL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def make_encoder(path: Path, *, pooling: int | None = 2, context: int = CONTEXT) -> Path:
    """Write the model.

    Args:
        path: file to write.
        pooling: what its file says (llama.h, llama_pooling_type): 2 its first token, 4 a reranker.
        context: tokens that it was trained for.
    """
    writer = GGUFWriter(path, "bert")
    writer.add_name("random bert")
    writer.add_context_length(context)
    writer.add_embedding_length(EMBD)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FF)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_eps(1e-12)
    writer.add_causal_attention(False)
    if pooling is not None:
        writer.add_uint32("bert.pooling_type", pooling)
    n_vocab = _add_vocabulary(writer)
    for name, shape in _shapes(n_vocab, context).items():
        writer.add_tensor(name, _weights(name, shape))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add_vocabulary(writer: GGUFWriter) -> int:
    """WordPiece: each character at the beginning of a word, and within one."""
    characters = string.ascii_lowercase + string.digits + string.punctuation
    start = "\N{LOWER ONE EIGHTH BLOCK}"
    tokens = [*_CONTROL, *(start + c for c in characters), *characters]
    types = [TokenType.CONTROL] * len(_CONTROL) + [TokenType.NORMAL] * (2 * len(characters))
    writer.add_tokenizer_model("bert")
    writer.add_tokenizer_pre("default")
    writer.add_token_type_count(2)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_pad_token_id(0)
    writer.add_unk_token_id(1)
    writer.add_bos_token_id(2)
    writer.add_sep_token_id(3)
    writer.add_mask_token_id(4)
    return len(tokens)


def _shapes(n_vocab: int, context: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (n_vocab, EMBD),
        "token_types.weight": (2, EMBD),
        "position_embd.weight": (context, EMBD),
        "token_embd_norm.weight": (EMBD,),
        "token_embd_norm.bias": (EMBD,),
    }
    matrices = {"attn_q": (EMBD, EMBD), "attn_k": (EMBD, EMBD), "attn_v": (EMBD, EMBD)}
    matrices |= {"attn_output": (EMBD, EMBD), "ffn_up": (FF, EMBD), "ffn_down": (EMBD, FF)}
    for layer in range(LAYERS):
        for name, shape in matrices.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
            shapes[f"blk.{layer}.{name}.bias"] = shape[:1]
        for name in ("attn_output_norm", "layer_output_norm"):
            shapes[f"blk.{layer}.{name}.weight"] = (EMBD,)
            shapes[f"blk.{layer}.{name}.bias"] = (EMBD,)
    return shapes


def _weights(name: str, shape: tuple[int, ...]) -> np.ndarray:
    stream = np.random.default_rng(zlib.crc32(name.encode()))
    values = stream.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)
    return values + np.float32(name.endswith("norm.weight"))
