"""A model's vocabulary without the model: the metadata of its file, and a Model made of that.

Whoever samples elsewhere than where the file is needs the text of the tokens for a grammar. The
metadata of a GGUF file has all that the tokenizer needs; it takes 1 to 20 MB.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Final

from ringline.errors import CallerError
from ringline.llama.gguf_file import MAGIC, check_model_file
from ringline.llama.gguf_reader import opened
from ringline.llama.library import no_check
from ringline.llama.loading import LoadOptions, load_handle
from ringline.llama.model import Model

__all__ = ["load_vocabulary", "vocabulary_header"]

#: how many shards there are, and the like: with it libllama would look for the other ones.
_SHARDS: Final = "split."
_NAME: Final = "vocabulary"


def vocabulary_header(path: Path) -> bytes:
    """The metadata of a model's file as a GGUF file of its own, without tensors.

    All of it is copied as it is, but for what is said of the shards.

    Args:
        path: the file, or the first of several shards, which has the metadata.

    Raises:
        CallerError: it is missing, is no GGUF file, or its header makes no sense.
    """
    first = check_model_file(path)[0]
    with opened(first) as reader:
        kept: list[bytes] = []
        for _ in range(reader.n_values):
            start = reader.place
            key = reader.string()
            reader.value()
            if reader.place > len(reader.data):
                raise ValueError(f"the value of {key!r} goes beyond the end of the file")
            if not key.startswith(_SHARDS):
                kept.append(reader.data[start : reader.place])
        head = struct.pack("<IQQ", reader.version, 0, len(kept))
    return MAGIC + head + b"".join(kept)


def load_vocabulary(header: bytes | bytearray | memoryview) -> Model:
    """Make a model that has a vocabulary and metadata, and no weights.

    Args:
        header: what vocabulary_header() returned.

    Raises:
        CallerError: libllama cannot use it; says why.
        LibraryError: llama-cpp-python is missing or has another version.
    """
    if bytes(header[: len(MAGIC)]) != MAGIC:
        raise CallerError(f"a vocabulary begins with {MAGIC!r}, this one with {header[:4]!r}")
    # libllama reads files: this one is nowhere but in memory.
    descriptor = os.memfd_create(_NAME)
    try:
        with os.fdopen(os.dup(descriptor), "wb") as file:
            file.write(header)
        path = Path(f"/proc/self/fd/{descriptor}")
        options = LoadOptions(use_mmap=False, vocab_only=True)
        handle = load_handle(path, options, None, no_check, name="the vocabulary")
    finally:
        os.close(descriptor)
    model = Model(handle, Path(_NAME))
    if model.n_vocab < 1:
        model.close()
        raise CallerError("the vocabulary cannot be used: it has no tokens")
    return model
