"""ringline: one language model over several machines, stage to stage in a ring.

Importing this package loads no library and no llama_cpp: public names are found when asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ringline.engine.engine import Engine as Engine
    from ringline.engine.ring import Ring as Ring
    from ringline.net.tls import TlsFiles as TlsFiles

__all__ = ["Engine", "Ring", "TlsFiles", "__version__"]

__version__ = "0.1.0"

#: public name -> module that defines it.
_HOMES = {
    "Engine": "ringline.engine.engine",
    "Ring": "ringline.engine.ring",
    "TlsFiles": "ringline.net.tls",
}


def __getattr__(name: str) -> object:
    """Import the module that defines a public name the first time that the name is used."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted(set(globals()) | set(__all__))
