"""The stock peers of a measurement, as processes: they live in a checkout's tests, not in here.

ringline never calls into libggml-rpc itself. Servers are ended by their own pid, and end themselves
when this process is gone. Seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final

import ringline
from ringline.errors import CallerError, NetworkError, PeerError
from ringline.ggml.find import find_libraries
from ringline.net.endpoint import Endpoint

__all__ = ["StockServers", "find_checkout", "run_client"]

_READY: Final = b"stock: ready on "
_START_SECONDS: Final = 60.0
_STOP_SECONDS: Final = 2.0
#: for one client from start to end; it loads a model and decodes some hundred tokens.
_CLIENT_SECONDS: Final = 600.0
_LOG_SIZE: Final = 1 << 20


def find_checkout() -> Path:
    """The checkout that this package runs from, with its stock peers.

    Raises:
        CallerError: there is none, or the engine was built without llama.cpp's own RPC.
    """
    checkout = Path(ringline.__file__).resolve().parents[2]
    if not (checkout / "tests" / "peers" / "stock_client.py").exists():
        raise CallerError(
            "the stock client and server are part of ringline's tests: run `make bench` in a "
            "checkout of ringline"
        )
    if not (find_libraries() / "libggml-rpc.so.0").exists():
        raise CallerError(
            "this llama-cpp-python was built without llama.cpp's own RPC, which ringline is "
            "measured against: run `make bench`, which builds it"
        )
    return checkout


def run_client(checkout: Path, module: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Run a client of tests/peers to its end; the JSON object that it prints.

    Raises:
        PeerError: it failed, or took too long; quotes the last line of its log.
    """
    command = [sys.executable, "-m", f"tests.peers.{module}", *arguments]
    try:
        done = subprocess.run(
            command,
            cwd=checkout,
            env={**os.environ, "RINGLINE_P2P": "1"},  # an arm says itself which path it takes
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            timeout=_CLIENT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{module} did not end within {_CLIENT_SECONDS:g} s") from None
    if done.returncode != 0:
        cause = f"{module} ended with exit code {done.returncode}"
        raise PeerError(f"{cause}: {_last_line(done.stderr or done.stdout)}")
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@dataclass(slots=True)
class _Started:
    process: subprocess.Popen[bytes]
    log: IO[bytes]


class StockServers:
    """`count` stock servers on free loopback ports; a context manager. `endpoints` in order."""

    def __init__(self, checkout: Path, count: int, *, n_threads: int) -> None:
        """Start them, all at once, and wait until each is ready.

        Raises:
            NetworkError: one did not start; quotes the last line of its log.
        """
        self.endpoints: list[Endpoint] = []
        self._servers: list[_Started] = []
        try:
            for _ in range(count):
                self._servers.append(_start(checkout, n_threads))
            deadline = time.monotonic() + _START_SECONDS
            self.endpoints = [_wait_ready(server, deadline) for server in self._servers]
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the servers; may be called again, never raises."""
        for server in self._servers:
            with contextlib.suppress(OSError):
                if server.process.stdin is not None:
                    server.process.stdin.close()
                server.process.terminate()
        for server in self._servers:
            try:
                server.process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                server.process.kill()
                server.process.wait()
            server.log.close()
        self._servers.clear()

    def __enter__(self) -> StockServers:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _start(checkout: Path, n_threads: int) -> _Started:
    command = [sys.executable, "-m", "tests.peers.stock_server", "--end-with-stdin"]
    log = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the server
    process = subprocess.Popen(
        [*command, f"--threads={n_threads}"],
        cwd=checkout,
        stdin=subprocess.PIPE,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C is for us; we end our servers ourselves
    )
    return _Started(process, log)


def _wait_ready(server: _Started, deadline: float) -> Endpoint:
    """Wait for the line that names the endpoint; pread() leaves the server's offset alone."""
    while True:
        code = server.process.poll()
        text = os.pread(server.log.fileno(), _LOG_SIZE, 0)
        for line in text.split(b"\n")[:-1]:
            if line.startswith(_READY):
                return Endpoint.parse(line[len(_READY) :].split()[0].decode())
        if code is not None:
            cause = f"a stock server ended at its start with exit code {code}"
            raise NetworkError(f"{cause}: {_last_line(text)}", peer="")
        if time.monotonic() > deadline:
            raise NetworkError(f"a stock server was not ready in {_START_SECONDS:g} s", peer="")
        time.sleep(0.02)


def _last_line(output: bytes) -> str:
    lines = output.decode("utf-8", "replace").split("\n")
    said = [line.strip() for line in lines if line.strip()]
    return said[-1] if said else "it said nothing"
