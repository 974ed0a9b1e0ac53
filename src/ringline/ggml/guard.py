"""No exception crosses into C: a ctypes callback that raises hands C garbage (a bool becomes True).

Every callback is wrapped by `guard`. It gives the error to whoever owns the first argument and
returns the declared fallback.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

from ringline.interrupts import callback

__all__ = ["Failing", "guard", "owners"]

_log = logging.getLogger(__name__)


class Failing(Protocol):
    """Whoever stands behind a C object."""

    def fail(self, error: BaseException) -> None:
        """Remember an error."""


#: address of a C struct of ours -> the object behind it. Kept here as long as C may use the struct.
owners: dict[int, Any] = {}


def guard(prototype: Any, fallback: object) -> Callable[[Callable[..., object]], Any]:
    """Make a C function pointer out of a Python function.

    Args:
        prototype: the CFUNCTYPE.
        fallback: what C gets when the function raises.

    Returns:
        A decorator. What it returns must be kept alive as long as C may call it.
    """

    def decorate(function: Callable[..., object]) -> Any:
        @callback
        def guarded(*arguments: Any) -> object:
            try:
                return function(*arguments)
            except BaseException as error:  # even KeyboardInterrupt: check() raises it again
                _report(arguments[0], error)
                return fallback

        return prototype(guarded)

    return decorate


def _report(address: int | None, error: BaseException) -> None:
    owner = owners.get(address or 0)
    if owner is None:
        _log.error("a callback for an unknown object at %s failed", address, exc_info=error)
        return
    owner.fail(error)
