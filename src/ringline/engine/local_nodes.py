"""Nodes of our own: `ringline serve` processes on loopback that end with their parent.

They have no TLS, whatever the environment says: its certificate is another machine's.

A node ends when its stdin reaches EOF, so it cannot outlive us even if we are killed. Seconds.
"""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO, Final

from ringline.errors import NetworkError
from ringline.net.endpoint import Endpoint
from ringline.settings import TLS_VARIABLES

__all__ = ["LocalNodes"]

_READY: Final = b"ringline: ready on "
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 2.0
#: how much of a dead node's log an error quotes.
_LOG_TAIL: Final = 2000


@dataclass(slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class LocalNodes:
    """`count` nodes on free loopback ports; a context manager. `endpoints` are in order."""

    def __init__(
        self,
        count: int,
        *,
        n_threads: int | None = None,
        inside: Sequence[str] = (),
        host: str = "127.0.0.1",
        options: Sequence[str] = (),
    ) -> None:
        """Start the nodes, all at once, and wait until each is ready.

        Args:
            count: how many.
            n_threads: CPU threads of each; None: half of the processors.
            inside: what stands before their command, to run them in a namespace.
            host: the address that they listen on.
            options: more options of `ringline serve`.

        Raises:
            NetworkError: a node did not start; quotes the end of its log.
        """
        self.endpoints: list[Endpoint] = []
        self._nodes: list[_Started] = []
        more = ["--host", host, *options]
        if n_threads is not None:
            more += ["--threads", str(n_threads)]
        try:
            for _ in range(count):
                self._nodes.append(_start(inside, more))
            deadline = time.monotonic() + _START_SECONDS
            self.endpoints = [_wait_ready(node, deadline) for node in self._nodes]
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        """Process ids of the gatekeepers, in order."""
        return [node.process.pid for node in self._nodes]

    def close(self) -> None:
        """End the nodes; may be called again, never raises."""
        for node in self._nodes:
            with contextlib.suppress(OSError):
                if node.process.stdin is not None:
                    node.process.stdin.close()
                node.process.terminate()
        for node in self._nodes:
            try:
                node.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait()
            if node.process.stdout is not None:
                node.process.stdout.close()
            node.log.close()
        self._nodes.clear()

    def __enter__(self) -> LocalNodes:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _start(inside: Sequence[str], options: Sequence[str]) -> _Started:
    command = [*inside, sys.executable, "-m", "ringline", "serve", "--port", "0"]
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the node
    process = subprocess.Popen(
        [*command, "--until-stdin-closes", *options],
        env={name: value for name, value in os.environ.items() if name not in TLS_VARIABLES},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        start_new_session=True,  # Ctrl-C is for us; we end our nodes ourselves
    )
    return _Started(process, log)


def _wait_ready(node: _Started, deadline: float) -> Endpoint:
    """Read the node's stdout up to the line that names its endpoint."""
    assert node.process.stdout is not None
    text = b""
    while True:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([node.process.stdout], [], [], left)[0]:
            raise _failed(node, f"was not ready within {_START_SECONDS:g} s")
        piece = os.read(node.process.stdout.fileno(), 4096)
        if not piece:
            raise _failed(node, f"ended at its start with exit code {node.process.wait()}")
        text += piece
        for line in text.split(b"\n")[:-1]:
            if line.startswith(_READY):
                return Endpoint.parse(line[len(_READY) :].split()[0].decode())


def _failed(node: _Started, cause: str) -> NetworkError:
    node.log.seek(0)
    log = node.log.read()[-_LOG_TAIL:].decode("utf-8", "replace").strip()
    last = log.splitlines()[-1] if log else "it said nothing"
    return NetworkError(f"{cause}: {last}", peer="of our own (ringline serve)")
