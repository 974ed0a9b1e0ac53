"""Where the shared libraries of the installed llama-cpp-python are, without importing it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
from pathlib import Path
from typing import Final

from ringline.errors import LibraryError

__all__ = ["PACKAGE_VERSION", "find_libraries", "installed_version"]

#: the version whose layouts and protocol this code was written for.
PACKAGE_VERSION: Final = "0.3.36"

_ADVICE = f"install it with: pip install llama-cpp-python=={PACKAGE_VERSION}"


def installed_version() -> str:
    """Version of the installed llama-cpp-python.

    Raises:
        LibraryError: it is not installed.
    """
    try:
        return importlib.metadata.version("llama_cpp_python")
    except importlib.metadata.PackageNotFoundError:
        raise LibraryError(f"llama-cpp-python is not installed; {_ADVICE}") from None


def find_libraries() -> Path:
    """The folder that holds libggml-base.so, libggml.so and libllama.so.

    Raises:
        LibraryError: not installed, another version, or the folder lacks the libraries.
    """
    version = installed_version()
    if version != PACKAGE_VERSION:
        raise LibraryError(
            f"llama-cpp-python {version} is installed, but ringline knows the layouts of "
            f"{PACKAGE_VERSION} only; {_ADVICE}"
        )
    spec = importlib.util.find_spec("llama_cpp")
    if spec is None or spec.origin is None:
        raise LibraryError(f"the package llama_cpp cannot be found; {_ADVICE}")
    folder = Path(spec.origin).parent / "lib"
    if not (folder / "libggml-base.so").exists():
        raise LibraryError(
            f"{folder} holds no libggml-base.so: llama-cpp-python was built for another platform "
            f"or as one static library; {_ADVICE}"
        )
    return folder
