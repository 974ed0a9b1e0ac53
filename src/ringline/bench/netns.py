"""Two network namespaces with a link between them whose rate can be limited. Linux, root.

A namespace has an address on the link and a loopback of its own; nothing outside is touched. The
limit is a token bucket (tc-tbf) at both ends, so both directions have it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Sequence
from typing import Final, Self

from ringline.errors import LibraryError

__all__ = ["Link", "obstacle"]

_SECONDS: Final = 20.0
#: a token bucket needs room for the largest packet, and time to queue what comes at once.
_BURST: Final = "16kb"
_LATENCY: Final = "500ms"


def obstacle() -> str | None:
    """Why there can be no namespaces here; None: there can."""
    if os.name != "posix" or os.geteuid() != 0:
        return "network namespaces need root"
    missing = [program for program in ("ip", "tc") if shutil.which(program) is None]
    return f"{' and '.join(missing)} (package iproute2) cannot be found" if missing else None


class Link:
    """Namespaces `left` and `right`, connected; a context manager that removes them.

    Attributes:
        left, right: names of the namespaces.
        left_address, right_address: their addresses on the link.
        network: that holds both.
    """

    network: Final = "10.213.77.0/30"
    left_address: Final = "10.213.77.1"
    right_address: Final = "10.213.77.2"

    def __init__(self) -> None:
        """Make the namespaces.

        Raises:
            LibraryError: the system does not let us; says why.
        """
        why = obstacle()
        if why is not None:
            raise LibraryError(f"a limited link cannot be made: {why}")
        number = os.getpid()
        self.left, self.right = f"ringline-l{number}", f"ringline-r{number}"
        self._ends = {self.left: f"rl{number}"[:15], self.right: f"rr{number}"[:15]}
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def command(self, namespace: str) -> list[str]:
        """What stands before a command that is to run in a namespace."""
        return ["ip", "netns", "exec", namespace]

    def limit(self, rate: str | None) -> None:
        """Limit both directions to a rate as tc writes it (1mbit); None: no limit.

        Raises:
            LibraryError: tc refuses.
        """
        for namespace, end in self._ends.items():
            inside = [*self.command(namespace), "tc", "qdisc"]
            _try([*inside, "del", "dev", end, "root"])  # there may be no limit yet
            if rate is not None:
                bucket = ["tbf", "rate", rate, "burst", _BURST, "latency", _LATENCY]
                _run([*inside, "add", "dev", end, "root", *bucket])

    def close(self) -> None:
        """Remove the namespaces, and with them the link; may be called again."""
        for namespace in self._ends:
            _try(["ip", "netns", "del", namespace])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _make(self) -> None:
        for namespace in self._ends:
            _run(["ip", "netns", "add", namespace])
        left, right = self._ends.values()
        _run(["ip", "link", "add", left, "type", "veth", "peer", "name", right])
        addresses = (self.left_address, self.right_address)
        for (namespace, end), address in zip(self._ends.items(), addresses, strict=True):
            _run(["ip", "link", "set", end, "netns", namespace])
            inside = [*self.command(namespace), "ip"]
            _run([*inside, "addr", "add", f"{address}/30", "dev", end])
            _run([*inside, "link", "set", end, "up"])
            _run([*inside, "link", "set", "lo", "up"])


def _try(command: Sequence[str]) -> None:
    """Run what may fail: what it undoes may not be there."""
    with contextlib.suppress(LibraryError):
        _run(command)


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        raise LibraryError(f"{' '.join(command)} took more than {_SECONDS:g} s") from None
    if done.returncode:
        raise LibraryError(f"{' '.join(command)} failed: {done.stderr.strip() or 'no reason'}")
