"""Load ggml's shared libraries once, with a prototype for every function that we call.

`load()` checks the library against our layouts (selftest.py) before it hands it out. Functions of
libggml's device registry (dev_*, reg_*) may start accelerator runtimes when first called, which
do not survive a fork: the node's gatekeeper loads the library but never calls them.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Final

from ringline.errors import LibraryError
from ringline.ggml.find import PACKAGE_VERSION, find_libraries
from ringline.ggml.layout import BufferInterface

__all__ = ["GGML_VERSION", "Library", "load"]

#: the ggml inside llama-cpp-python 0.3.36.
GGML_VERSION: Final = "0.25.3"

_P = ctypes.c_void_p
_SIZE = ctypes.c_size_t
_INT = ctypes.c_int
_U8 = ctypes.c_uint8
_TEXT = ctypes.c_char_p
_BOOL = ctypes.c_bool
_SIZES = ctypes.POINTER(ctypes.c_size_t)

#: name -> (result, arguments); names without the prefix `ggml_`.
_BASE: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "version": (_TEXT, ()),
    "nbytes": (_SIZE, (_P,)),
    "type_size": (_SIZE, (_INT,)),
    "blck_size": (ctypes.c_int64, (_INT,)),
    "type_name": (_TEXT, (_INT,)),
    "op_name": (_TEXT, (_INT,)),
    "is_quantized": (_BOOL, (_INT,)),
    "get_type_traits": (_P, (_INT,)),
    "op_alloc_size_may_expand": (_BOOL, (_INT,)),
    "backend_name": (_TEXT, (_P,)),
    "backend_free": (None, (_P,)),
    "backend_synchronize": (None, (_P,)),
    "backend_graph_compute": (_INT, (_P, _P)),
    "backend_buft_name": (_TEXT, (_P,)),
    "backend_buft_alloc_buffer": (_P, (_P, _SIZE)),
    "backend_buft_get_alignment": (_SIZE, (_P,)),
    "backend_buft_get_max_size": (_SIZE, (_P,)),
    "backend_buft_get_alloc_size": (_SIZE, (_P, _P)),
    "backend_buft_is_host": (_BOOL, (_P,)),
    "backend_buffer_init": (_P, (_P, BufferInterface, _P, _SIZE)),
    "backend_buffer_free": (None, (_P,)),
    "backend_buffer_get_base": (_P, (_P,)),
    "backend_buffer_get_size": (_SIZE, (_P,)),
    "backend_buffer_get_usage": (_INT, (_P,)),
    "backend_buffer_init_tensor": (_INT, (_P, _P)),
    "backend_buffer_is_host": (_BOOL, (_P,)),
    "backend_buffer_clear": (None, (_P, _U8)),
    "backend_buffer_copy_tensor": (_BOOL, (_P, _P)),
    "backend_tensor_set": (None, (_P, _P, _SIZE, _SIZE)),
    "backend_tensor_get": (None, (_P, _P, _SIZE, _SIZE)),
    "backend_tensor_memset": (None, (_P, _U8, _SIZE, _SIZE)),
    "backend_dev_name": (_TEXT, (_P,)),
    "backend_dev_description": (_TEXT, (_P,)),
    "backend_dev_memory": (None, (_P, _SIZES, _SIZES)),
    "backend_dev_type": (_INT, (_P,)),
    "backend_dev_backend_reg": (_P, (_P,)),
    "backend_dev_init": (_P, (_P, _TEXT)),
    "backend_dev_buffer_type": (_P, (_P,)),
    "backend_dev_supports_op": (_BOOL, (_P, _P)),
    "backend_reg_name": (_TEXT, (_P,)),
    "backend_reg_get_proc_address": (_P, (_P, _TEXT)),
}
_REGISTRY: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "backend_load_all": (None, ()),
    "backend_dev_count": (_SIZE, ()),
    "backend_dev_get": (_P, (_SIZE,)),
    "backend_dev_by_name": (_P, (_TEXT,)),
    "backend_dev_by_type": (_P, (_INT,)),
}
#: used by selftest.py alone.
_TEST: Final[dict[str, tuple[Any, tuple[Any, ...]]]] = {
    "new_tensor_4d": (_P, (_P, _INT, *(ctypes.c_int64,) * 4)),
    "view_1d": (_P, (_P, _P, ctypes.c_int64, _SIZE)),
    "add": (_P, (_P, _P, _P)),
    "set_name": (_P, (_P, _TEXT)),
    "free": (None, (_P,)),
    "new_graph_custom": (_P, (_P, _SIZE, _BOOL)),
    "build_forward_expand": (None, (_P, _P)),
}


class InitParams(ctypes.Structure):
    """struct ggml_init_params."""

    _fields_ = (("mem_size", _SIZE), ("mem_buffer", _P), ("no_alloc", _BOOL))


class Library:
    """The loaded libraries; every function stands here under its name without `ggml_`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._base = _open(folder, "libggml-base")
        self._registry = _open(folder, "libggml")
        for source, table in ((self._base, _BASE | _TEST), (self._registry, _REGISTRY)):
            for name, (result, arguments) in table.items():
                setattr(self, name, _function(source, f"ggml_{name}", result, arguments))
        self.init = _function(self._base, "ggml_init", _P, (InitParams,))

    def __getattr__(self, name: str) -> Any:
        """Functions are set in __init__; this tells the type checker about them."""
        raise AttributeError(name)


def _open(folder: Path, name: str) -> ctypes.CDLL:
    """Load the very file that libllama is linked to.

    The wheel holds copies where a build tree has links: libggml.so and libggml.so.0 are two files,
    and loading the wrong one would give the process a second ggml with a registry of its own.
    """
    path = folder / f"{name}.so.0"
    if not path.exists():
        path = folder / f"{name}.so"
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise LibraryError(
            f"{path} cannot be loaded ({error}); reinstall with: "
            f"pip install --force-reinstall --no-cache-dir llama-cpp-python=={PACKAGE_VERSION}"
        ) from None


def _function(library: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
    try:
        function = library[name]
    except AttributeError:
        raise LibraryError(
            f"the loaded ggml has no function {name}: it is not ggml {GGML_VERSION} of "
            f"llama-cpp-python {PACKAGE_VERSION}; install that version"
        ) from None
    function.restype = result
    function.argtypes = list(arguments)
    return function


@functools.cache
def load() -> Library:
    """The library, loaded and checked; the same one on every call.

    Raises:
        LibraryError: missing, another version, or another layout than ours.
    """
    from ringline.ggml.selftest import check_layouts

    library = Library(find_libraries())
    version = library.version().decode()
    if version != GGML_VERSION:
        raise LibraryError(
            f"ggml {version} is loaded, but ringline knows the layouts of ggml {GGML_VERSION} "
            f"only; install llama-cpp-python=={PACKAGE_VERSION}"
        )
    check_layouts(library)
    return library
