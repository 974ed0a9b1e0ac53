"""libllama, loaded once for the process, through llama_cpp's own low-level bindings.

Importing this module loads nothing: `libllama()` does, the first time that it is called. The log
callback of the library is process-wide; from then on its messages go to `ringline.llama`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from importlib import import_module, metadata
from types import ModuleType

from ringline.errors import LibraryError
from ringline.interrupts import callback, deliver
from ringline.llama import log

__all__ = ["LLAMA_VERSION", "PACKAGE_VERSION", "Check", "libllama", "no_check", "settle"]

#: the package that this room is written for, and what libllama calls itself in it.
PACKAGE_VERSION = "0.3.36"
LLAMA_VERSION = "0.5.0-dev"

#: called after each step of the library; raises what went wrong elsewhere (a lost node).
Check = Callable[[], None]


def no_check() -> None:
    """Nothing can go wrong elsewhere: all devices are local."""


def settle(check: Check) -> None:
    """After a call of the library: raise what could not be raised while it ran.

    Raises:
        KeyboardInterrupt: it came while the library ran.
        Exception: what `check` raises.
    """
    deliver()
    log.raise_postponed()
    check()


# guards _loaded and _callback
_lock = threading.Lock()
_loaded: ModuleType | None = None
# C keeps the address of this object: it must live as long as the process.
_callback: object = None


def libllama() -> ModuleType:
    """Return the module `llama_cpp.llama_cpp`, loaded, checked and initialised.

    Raises:
        LibraryError: llama-cpp-python is missing, has another version, or does not load.
    """
    global _loaded
    with _lock:
        if _loaded is None:
            _loaded = _load()
        return _loaded


def _load() -> ModuleType:
    _check_package()
    try:
        library = import_module("llama_cpp.llama_cpp")
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise LibraryError(
            f"llama-cpp-python {PACKAGE_VERSION} is installed but does not load ({error}); "
            f"build it again: {_remedy()}"
        ) from error
    found = library.llama_version().decode(errors="replace")
    if found != LLAMA_VERSION:
        raise LibraryError(
            f"libllama calls itself {found} and ringline needs {LLAMA_VERSION}; "
            "unset LLAMA_CPP_LIB_PATH if it points to another build"
        )
    _redirect_log(library)
    library.llama_backend_init()
    return library


def _check_package() -> None:
    try:
        found = metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError as error:
        raise LibraryError(
            f"llama-cpp-python is not installed and ringline needs {PACKAGE_VERSION}: {_remedy()}"
        ) from error
    if found != PACKAGE_VERSION:
        raise LibraryError(
            f"llama-cpp-python {found} is installed and ringline needs {PACKAGE_VERSION}: "
            f"{_remedy()}"
        )


def _remedy() -> str:
    return f"pip install --force-reinstall llama-cpp-python=={PACKAGE_VERSION}"


def _redirect_log(library: ModuleType) -> None:
    global _callback

    @callback
    def forward(level: int, text: bytes | None, _user_data: object) -> None:
        try:
            log.receive(level, (text or b"").decode("utf-8", "replace"))
        except Exception:  # a log handler that fails is no reason to stop what C is doing
            return
        except BaseException as error:
            log.postpone(error)

    _callback = library.llama_log_callback(forward)
    # Sets ggml's callback too (llama-impl.cpp, llama_log_set).
    library.llama_log_set(_callback, None)
