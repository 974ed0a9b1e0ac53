"""Programs of others and of our own as servers on loopback: started, waited for, ended. Seconds."""

from __future__ import annotations

import http.client
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

from ringline.errors import NetworkError

__all__ = ["HOST", "accepts", "free_port", "healthy", "running"]

HOST: Final = "127.0.0.1"
_START_SECONDS: Final = 120.0
_STOP_SECONDS: Final = 5.0


@contextmanager
def running(command: Sequence[str], ready: Callable[[], bool], *, name: str = "") -> Iterator[int]:
    """Run a program and wait until it is ready; its process id. It is ended by that.

    Args:
        command: the program and its arguments.
        ready: whether it is.
        name: in errors; "": the program's.

    Raises:
        NetworkError: it ended, or took too long; quotes the last line that it printed.
    """
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for us; we end it ourselves
        )
        try:
            _wait(name or Path(command[0]).name, process, log, ready)
            yield process.pid
        finally:
            process.terminate()
            try:
                process.wait(_STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait(
    name: str, process: subprocess.Popen[bytes], log: IO[bytes], ready: Callable[[], bool]
) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while not ready():
        code = process.poll()
        if code is not None:
            log.seek(0)
            lines = log.read().decode("utf-8", "replace").strip().splitlines()
            said = lines[-1] if lines else "it said nothing"
            raise NetworkError(f"{name} ended at its start with code {code}: {said}", peer="")
        if time.monotonic() > deadline:
            raise NetworkError(f"{name} was not ready within {_START_SECONDS:g} s", peer="")
        time.sleep(0.05)


def free_port() -> int:
    """A port that was free just now: these programs cannot be told to take one."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return int(listener.getsockname()[1])


def accepts(port: int) -> bool:
    """Whether somebody listens there."""
    try:
        socket.create_connection((HOST, port), timeout=1).close()
    except OSError:
        return False
    return True


def healthy(port: int) -> bool:
    """Whether a server there answers /health with 200."""
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == http.client.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
