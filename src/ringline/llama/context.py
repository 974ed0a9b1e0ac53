"""A llama_context: the KV cache and compute buffers of a model, and the decode step.

One thread uses a context at a time. Counts are tokens; shapes stand as comments.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ringline.errors import CallerError, LibraryError
from ringline.interrupts import deliver, held
from ringline.llama.batch import Batch
from ringline.llama.choice import Choice, Wanted, choose
from ringline.llama.library import Check, libllama, no_check, settle
from ringline.llama.log import collected_errors, quote
from ringline.llama.model import Model
from ringline.llama.pooling import Pooling

__all__ = ["Context", "available_cpus"]

#: llama-cparams.h, LLAMA_MAX_SEQ.
_MOST_SEQUENCES = 256


def available_cpus() -> int:
    """Number of CPUs that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class _Sizes:
    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_threads: int
    n_threads_batch: int

    def __post_init__(self) -> None:
        for name in ("n_batch", "n_ubatch", "n_seq_max", "n_threads", "n_threads_batch"):
            if getattr(self, name) < 1:
                raise CallerError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.n_ctx < 0:
            raise CallerError(f"n_ctx is {self.n_ctx}: it must be 0 (the model's own) or more")
        if self.n_seq_max > _MOST_SEQUENCES:
            raise CallerError(
                f"{self.n_seq_max} sequences are too many: a context has at most {_MOST_SEQUENCES}"
            )


class Context:
    """Decodes batches. Close it, or use it as a context manager; closing the model closes it too.

    Args:
        model: an open model.
        n_ctx: tokens of context in all, 0 for what the model was trained for; libllama rounds it up
            to a multiple of 256.
        n_batch: most tokens of one decode.
        n_ubatch: most tokens that are computed at once.
        n_seq_max: number of sequences.
        n_threads: CPU threads for single tokens; None for all CPUs of this process.
        n_threads_batch: CPU threads for prompts; None for n_threads.
        kv_unified: whether the sequences share one cache, so that one may use all of n_ctx.
        flash_attention: None where the devices decide.
        pooling: for embeddings: how the vectors of a sequence become one; None: for logits.
        check: called after each step of the library; raises what went wrong on a device.

    Attributes:
        model: the model that it belongs to.
        n_ctx: tokens that all sequences share, as libllama rounded it.
        n_ctx_seq: most tokens of one sequence.
        n_batch: most tokens of one decode, as libllama took it.
        n_ubatch: most tokens that are computed at once, as libllama took it.
        n_seq_max: number of sequences.

    Raises:
        CallerError: a size that makes no sense, or that there is no memory for.
        Exception: what `check` raises.
    """

    def __init__(
        self,
        model: Model,
        *,
        n_ctx: int = 0,
        n_batch: int = 2048,
        n_ubatch: int = 512,
        n_seq_max: int = 1,
        n_threads: int | None = None,
        n_threads_batch: int | None = None,
        kv_unified: bool = False,
        flash_attention: bool | None = None,
        pooling: Pooling | None = None,
        check: Check = no_check,
    ) -> None:
        threads = available_cpus() if n_threads is None else n_threads
        threads_batch = threads if n_threads_batch is None else n_threads_batch
        sizes = _Sizes(n_ctx, n_batch, n_ubatch, n_seq_max, threads, threads_batch)
        self.model = model
        self._library = libllama()
        self._check = check
        params = self._params(sizes, kv_unified, flash_attention, pooling)
        self._handle: int | None = self._create(sizes, params)
        model.adopt(self)
        self.n_ctx = int(self._library.llama_n_ctx(self._handle))
        self.n_ctx_seq = int(self._library.llama_n_ctx_seq(self._handle))
        self.n_batch = int(self._library.llama_n_batch(self._handle))
        self.n_ubatch = int(self._library.llama_n_ubatch(self._handle))
        self.n_seq_max = n_seq_max

    def _create(self, sizes: _Sizes, params: Any) -> int:
        with collected_errors() as errors, held():
            handle = self._library.llama_init_from_model(self.model.handle, params)
        try:
            settle(self._check)
        except BaseException:
            if handle:
                self._library.llama_free(handle)
            raise
        if not handle:
            raise CallerError(
                f"no context of {sizes.n_ctx or self.model.n_ctx_train} tokens for "
                f"{self.model.path.name}: {quote(errors)}"
            )
        return int(handle)

    def _params(
        self,
        sizes: _Sizes,
        kv_unified: bool,
        flash_attention: bool | None,
        pooling: Pooling | None,
    ) -> Any:
        params = self._library.llama_context_default_params()
        for name in _Sizes.__slots__:
            setattr(params, name, getattr(sizes, name))
        params.kv_unified = kv_unified
        if pooling is not None:
            params.embeddings, params.pooling_type = True, pooling.number
        params.flash_attn_type = {
            None: self._library.LLAMA_FLASH_ATTN_TYPE_AUTO,
            False: self._library.LLAMA_FLASH_ATTN_TYPE_DISABLED,
            True: self._library.LLAMA_FLASH_ATTN_TYPE_ENABLED,
        }[flash_attention]
        return params

    def close(self) -> None:
        """Free the cache and the compute buffers; a second call does nothing."""
        handle, self._handle = self._handle, None
        if handle is not None:
            with held():
                self._library.llama_free(handle)
            self.model.disown(self)
            deliver()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def handle(self) -> int:
        """Address of the llama_context, for this room only.

        Raises:
            CallerError: the context is closed.
        """
        if self._handle is None:
            raise CallerError(f"a context of {self.model.path.name} is closed")
        return self._handle

    def decode(self, batch: Batch) -> None:
        """Run a batch through the model and wait for its logits.

        Args:
            batch: 1 to n_batch tokens, at the next positions of their sequences.

        Raises:
            CallerError: the cache has no room for it, or libllama refuses it (with its reason).
            LibraryError: a local device failed to compute it.
            Exception: what `check` raises; it goes before the library's own error, and it is asked
                after a success too, because libllama reports a lost node as one.
        """
        if not 1 <= len(batch) <= self.n_batch:
            # libllama aborts the process where a batch is too long.
            raise CallerError(f"one decode takes 1 to {self.n_batch} tokens, not {len(batch)}")
        handle = self.handle
        with collected_errors() as errors, held():
            result = self._library.llama_decode(handle, batch.struct)
            self._library.llama_synchronize(handle)
        settle(self._check)
        if result != 0:
            raise _decode_error(result, len(batch), errors)

    def step(self, batch: Batch, wanted: Sequence[Wanted]) -> list[Choice]:
        """Run a batch, and choose tokens from its logits; errors as decode().

        Args:
            batch: see decode().
            wanted: a token for each of some that asked for logits.

        Returns:
            One choice for each that is wanted, in order.
        """
        self.decode(batch)
        return [choose(self.logits(one.index), one) for one in wanted]

    def logits(self, index: int = -1) -> NDArray[np.float32]:
        """Return the logits of one token of the last batch.

        Args:
            index: the token's index in the batch; -1 is the last one that asked for logits.

        Returns:
            A view, [n_vocab] f32, valid until the next decode or close.

        Raises:
            CallerError: the token did not ask for logits.
        """
        address = self.logits_address(index)
        row = (ctypes.c_float * self.model.n_vocab).from_address(address)
        return np.frombuffer(memoryview(row).cast("B"), np.float32)

    def logits_address(self, index: int = -1) -> int:
        """Where libllama has the logits of one token of the last batch; as logits()."""
        with held():
            pointer = self._library.llama_get_logits_ith(self.handle, index)
        deliver()
        if not pointer:
            raise CallerError(f"token {index} of the last batch did not ask for logits")
        return ctypes.addressof(pointer.contents)

    def embedding(self, seq_id: int) -> NDArray[np.float32]:
        """Return the vector of one sequence of the last batch, where the context pools.

        A sequence has to be in one piece of one batch: libllama pools piece by piece.

        Returns:
            A copy, [n_embd_out] f32.

        Raises:
            CallerError: the context does not pool, or the last batch had no such sequence.
        """
        with held():
            pointer = self._library.llama_get_embeddings_seq(self.handle, seq_id)
        deliver()
        if not pointer:
            raise CallerError(f"the last batch has no embedding of sequence {seq_id}")
        return np.ctypeslib.as_array(pointer, (self.model.n_embd_out,)).copy()

    @property
    def has_memory(self) -> bool:
        """Whether it remembers what it read; an encoder does not, and so continues no text."""
        return bool(self._memory())

    def memory_clear(self, *, data: bool = False) -> None:
        """Forget all sequences.

        Args:
            data: whether the cache is overwritten with zeros too, which costs time.
        """
        with held():
            self._library.llama_memory_clear(self._memory(), data)
        settle(self._check)

    def seq_rm(self, seq_id: int, start: int = 0, end: int = -1) -> bool:
        """Forget the positions `start` to `end` (excluded; -1 for all) of a sequence.

        Returns:
            False where the model's memory cannot drop a part of a sequence (recurrent models).

        Raises:
            CallerError: there is no such sequence.
        """
        if not 0 <= seq_id < self.n_seq_max:
            raise CallerError(f"sequence {seq_id} is not one of this context's {self.n_seq_max}")
        with held():
            removed = self._library.llama_memory_seq_rm(self._memory(), seq_id, start, end)
        deliver()
        return bool(removed)

    def _memory(self) -> Any:
        return self._library.llama_get_memory(self.handle)


def _decode_error(result: int, n_tokens: int, errors: list[str]) -> Exception:
    """Turn llama_decode's number (llama.h) into an exception that says what to do."""
    batch = f"the batch of {n_tokens} token{'s' if n_tokens > 1 else ''}"
    if result == 1 and errors:
        return CallerError(f"libllama finds no place for {batch}: {quote(errors)}")
    if result == 1:
        return CallerError(
            f"the KV cache has no room for {batch}: take a larger context, or remove sequences"
        )
    reason = quote(errors)
    if result == -1:
        return CallerError(f"libllama refuses {batch}: {reason}")
    if result == -2:
        return CallerError(
            f"there is no memory to compute {batch} (lower n_ubatch or n_ctx): {reason}"
        )
    if result == 2:
        return CallerError(f"the computation of {batch} was aborted")
    return LibraryError(f"libllama failed to compute {batch} (code {result}): {reason}")
