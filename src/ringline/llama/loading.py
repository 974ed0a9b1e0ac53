"""One load of a model: libllama's parameters for it, its progress callback, its failure in words.

Devices are addresses of ggml_backend_dev_t; an empty list means the local CPU alone, never "all
that there are", which is what libllama would take without a list.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ringline.errors import CallerError
from ringline.interrupts import callback, deliver, held
from ringline.llama.library import Check, libllama, settle
from ringline.llama.log import collected_errors, quote

__all__ = ["MAX_DEVICES", "LoadOptions", "Progress", "load_handle"]

#: takes the loaded share, 0 to 1; False stops the load.
Progress = Callable[[float], bool | None]

#: ggml's scheduler has room for 16 backends and aborts the process beyond (ggml-backend.cpp,
#: GGML_SCHED_MAX_BACKENDS); libllama adds the CPU and, where there is one, a BLAS backend.
MAX_DEVICES = 14


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How to place a model.

    Attributes:
        devices: addresses of ggml_backend_dev_t, in the order of the layers.
        n_gpu_layers: how many layers, counted from the end and with the output layer as one, go to
            the devices; a negative number means all.
        tensor_split: each device's share of these layers, in any unit; empty: by free memory.
        use_mmap: whether weights are read from a mapping of the file.
        repack: whether the local CPU may re-order quantised weights for speed. A device never does,
            and re-ordered sums are rounded differently: switch it off to compare texts exactly.
        vocab_only: whether the vocabulary alone is wanted, and no weights.
    """

    devices: tuple[int, ...] = ()
    n_gpu_layers: int = -1
    tensor_split: tuple[float, ...] = ()
    use_mmap: bool = True
    repack: bool = True
    vocab_only: bool = False

    def __post_init__(self) -> None:
        if len(self.devices) > MAX_DEVICES:
            raise CallerError(
                f"{len(self.devices)} devices are too many: ggml takes at most {MAX_DEVICES}"
            )
        if any(address == 0 for address in self.devices):
            raise CallerError("the list of devices holds a device that does not exist (NULL)")
        _check_split(self.tensor_split, len(self.devices))


def _check_split(tensor_split: Sequence[float], n_devices: int) -> None:
    if not tensor_split:
        return
    shares = ",".join(f"{share:g}" for share in tensor_split)
    if len(tensor_split) != n_devices:
        raise CallerError(
            f"tensor split {shares} has {len(tensor_split)} numbers for {n_devices} devices"
        )
    if not all(math.isfinite(share) and share >= 0 for share in tensor_split):
        raise CallerError(f"tensor split {shares}: each share is a number of 0 or more")
    if sum(tensor_split) == 0:
        raise CallerError(f"tensor split {shares} gives no device a layer")


def load_handle(
    path: Path,
    options: LoadOptions,
    progress: Progress | None,
    check: Check,
    *,
    name: str | None = None,
) -> int:
    """Load a model and return the address of its llama_model.

    Args:
        path: the file.
        options: how to place it.
        progress: called with the loaded share, 0 to 1; returns False to stop.
        check: called while and after loading; raises what went wrong on a device.
        name: what it is called in a sentence; None for its path.

    Raises:
        CallerError: libllama cannot load the file, says why; or `progress` stopped it.
        Exception: what `progress` or `check` raised, also in the middle of the load.
    """
    library = libllama()
    watch = _Watch(progress, check)
    params, _alive = _params(library, options, watch)
    with collected_errors() as errors, held():
        handle = library.llama_model_load_from_file(os.fsencode(path), params)
    try:
        watch.raise_if_failed()
        # Before the library's own reason: it swallows errors of remote devices, or blurs them.
        settle(check)
    except BaseException:
        if handle:
            library.llama_model_free(handle)
        raise
    if not handle:
        if watch.stopped:
            raise CallerError(f"loading {path.name} was stopped by its progress callback")
        raise CallerError(f"{name or path} cannot be loaded: {quote(errors)}")
    return int(handle)


def _params(library: ModuleType, options: LoadOptions, watch: _Watch) -> tuple[Any, object]:
    """Build llama_model_params, and return it with all that C reads during the load."""
    params = library.llama_model_default_params()
    devices = (ctypes.c_void_p * (len(options.devices) + 1))(*options.devices, None)
    params.devices = ctypes.addressof(devices)
    params.split_mode = library.LLAMA_SPLIT_MODE_LAYER
    params.n_gpu_layers = options.n_gpu_layers if options.devices else 0
    params.load_mode = (
        library.LLAMA_LOAD_MODE_MMAP if options.use_mmap else library.LLAMA_LOAD_MODE_NONE
    )
    params.use_extra_bufts = options.repack
    params.vocab_only = options.vocab_only
    split = None
    if options.tensor_split:
        # libllama copies llama_max_devices() numbers, whatever the number of devices.
        split = (ctypes.c_float * library.llama_max_devices())(*options.tensor_split)
        params.tensor_split = ctypes.cast(split, ctypes.POINTER(ctypes.c_float))
    callback = library.llama_progress_callback(watch.on_progress)
    params.progress_callback = callback
    return params, (devices, split, callback)


class _Watch:
    """The progress callback, which must not raise into C: it stops the load and remembers.

    It runs even where nobody asked for progress, because it is where a load can be stopped: by
    Ctrl-C, and by the error of a node that was lost.
    """

    def __init__(self, progress: Progress | None, check: Check) -> None:
        self._progress = progress
        self._check = check
        self._failure: BaseException | None = None
        self.stopped = False

    @callback
    def on_progress(self, share: float, _user_data: object) -> bool:
        """Return whether the load goes on."""
        try:
            deliver()
            self._check()
            if self._progress is not None and self._progress(share) is False:
                self.stopped = True
        except BaseException as error:
            self._failure = error
        return self._failure is None and not self.stopped

    def raise_if_failed(self) -> None:
        """Raise what a callback raised during the load."""
        if self._failure is not None:
            raise self._failure
