"""Greedy decoding over libllama's low-level functions: a model, a context, a batch, the best token.

It runs the same code whoever computes: no device (local CPU), devices of the stock RPC client, or
devices of ringline's own client backend. All of them come as addresses of `ggml_backend_dev_t`.
What it opens it frees, in the order that libllama wants.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import llama_cpp.llama_cpp as llama

#: more layers than any model has: all of them go to the devices, and the output layer too
ALL_LAYERS = 999


class DecodeError(RuntimeError):
    """libllama refused: a model that does not load, a context, a decode that is not 0."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One token of a batch: of which sequence, at which position, whether its logits count."""

    token: int
    sequence: int
    position: int
    logits: bool


@contextmanager
def open_model(
    path: str | Path,
    devices: Sequence[int] | None,
    tensor_split: Sequence[float] | None = None,
) -> Iterator[int]:
    """Load a model split by layers over `devices`, in that order; none means the local CPU.

    Raises:
        DecodeError: libllama could not load it.
    """
    chosen = list(devices or ())
    terminated = (ctypes.c_void_p * (len(chosen) + 1))(*chosen, None)
    shares = (ctypes.c_float * llama.llama_max_devices())(*(tensor_split or ()))
    parameters = llama.llama_model_default_params()
    # An empty list, not a null one: null lets libllama take whatever devices are registered.
    parameters.devices = ctypes.addressof(terminated)
    parameters.n_gpu_layers = ALL_LAYERS if chosen else 0
    if tensor_split:
        parameters.tensor_split = shares
    model = llama.llama_model_load_from_file(str(path).encode(), parameters)
    if not model:
        raise DecodeError(f"libllama could not load {path} on {len(chosen)} devices")
    try:
        yield model
    finally:
        llama.llama_model_free(model)


def tokenize(model: int, text: str) -> list[int]:
    """The tokens of a text, with what the model puts in front of a text."""
    vocabulary = llama.llama_model_get_vocab(model)
    raw = text.encode()
    tokens = (llama.llama_token * (len(raw) + 8))()
    count = llama.llama_tokenize(vocabulary, raw, len(raw), tokens, len(tokens), True, False)
    return list(tokens[:count])


class Decoder:
    """A context with its batch and a greedy sampler; a context manager.

    Args:
        model: what `open_model` yields.
        n_ctx: tokens of context, all sequences together.
        n_batch: most tokens of one decode.
        n_ubatch: most tokens that go through the devices at once.
        n_seq_max: sequences side by side.
        n_threads: CPU threads of this process; servers have their own.
    """

    def __init__(
        self,
        model: int,
        *,
        n_ctx: int,
        n_batch: int,
        n_ubatch: int,
        n_seq_max: int,
        n_threads: int,
    ) -> None:
        parameters = llama.llama_context_default_params()
        parameters.n_ctx, parameters.n_batch, parameters.n_ubatch = n_ctx, n_batch, n_ubatch
        parameters.n_seq_max = n_seq_max
        parameters.n_threads = parameters.n_threads_batch = n_threads
        self._context = llama.llama_init_from_model(model, parameters)
        if not self._context:
            raise DecodeError("libllama could not make a context")
        self._n_batch = n_batch
        self._batch = llama.llama_batch_init(n_batch, 0, 1)
        self._sampler = llama.llama_sampler_init_greedy()

    def __enter__(self) -> Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        llama.llama_sampler_free(self._sampler)
        llama.llama_batch_free(self._batch)
        llama.llama_free(self._context)

    def decode(self, entries: Sequence[Entry]) -> None:
        """Run one batch through the model and wait for its logits.

        Raises:
            DecodeError: libllama reports a failure.
        """
        if len(entries) > self._n_batch:
            raise DecodeError(f"{len(entries)} tokens do not fit a batch of {self._n_batch}")
        batch = self._batch
        batch.n_tokens = len(entries)
        for index, entry in enumerate(entries):
            batch.token[index], batch.pos[index] = entry.token, entry.position
            batch.n_seq_id[index], batch.seq_id[index][0] = 1, entry.sequence
            batch.logits[index] = entry.logits
        status = llama.llama_decode(self._context, batch)
        if status != 0:
            raise DecodeError(f"llama_decode returned {status}")
        llama.llama_synchronize(self._context)

    def best(self, index: int) -> int:
        """The most likely token after entry `index` of the last batch, which asked for logits."""
        return int(llama.llama_sampler_sample(self._sampler, self._context, index))

    def forget(self) -> None:
        """Empty the KV cache, the data of its buffers too."""
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)


def silence() -> None:
    """Let libllama and ggml print warnings and errors only, in the whole process."""
    llama.llama_log_set(_TROUBLE_LOG, ctypes.c_void_p())


_trouble = False  # whether the last message that began was one; parts that continue it follow it


def _print_trouble(level: int, text: bytes, _: object) -> None:
    global _trouble
    warning, error, continued = 3, 4, 5  # GGML_LOG_LEVEL_* of ggml.h; llama_cpp._logger has others
    if level != continued:
        _trouble = level in (warning, error)
    if _trouble:
        sys.stderr.write(text.decode(errors="replace"))


_TROUBLE_LOG = llama.llama_log_callback(_print_trouble)  # C keeps it: it must never be collected
