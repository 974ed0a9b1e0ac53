"""Start peers as processes, wait until they are ready, show their logs when something fails.

A peer's stdout and stderr go to one log file. A peer that fails to start, or a test that fails
while peers run, carries the end of their logs in its error. Each peer is ended by its own pid.
Waits are seconds for a normal machine; RINGLINE_TEST_PATIENCE multiplies them on a slow one.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.dead_ends import kept_port

ROOT = Path(__file__).resolve().parents[2]
LOG_TAIL = 6000  # bytes of a log that an error shows
START_SECONDS, STOP_SECONDS, CLIENT_SECONDS = 60.0, 20.0, 300.0


class PeerFailed(AssertionError):
    """A peer did not start, or ended with a failure; says so with its log."""


def patience(seconds: float) -> float:
    """The time to wait on this machine for what takes `seconds` on a normal one."""
    return seconds * float(os.environ.get("RINGLINE_TEST_PATIENCE") or 1)


@dataclass(frozen=True, slots=True)
class Peer:
    """A running peer: `endpoint` is `host:port`, the process is ours to end."""

    name: str
    endpoint: str
    process: subprocess.Popen[bytes]
    log_path: Path

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return self.process.poll() is None

    def log(self) -> str:
        """What the peer has printed, its last bytes."""
        return read_tail(self.log_path)

    def kill(self) -> None:
        """End it without warning, as a crash or a power cut would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end, insist after a while; its exit code, minus the signal if one ended it."""
        return end(self.process)


@contextmanager
def stock_server(
    n: int = 1,
    *,
    port: int = 0,
    threads: int = 1,
    device: str = "CPU",
    cache: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[list[Peer]]:
    """Run `n` stock servers on loopback; `port` is for one that has to come back where it was."""
    command = ["-m", "tests.peers.stock_server", "--end-with-stdin", f"--port={port}"]
    command += [f"--threads={threads}", f"--device={device}"]
    command += [f"--cache={cache}"] if cache else []
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                _peer(f"stock server {index}", command, "stock: ready on ", env, port)
            )
            for index in range(n)
        ]


@contextmanager
def ringline_node(
    *arguments: str, port: int = 0, env: Mapping[str, str] | None = None, prelude: str = ""
) -> Iterator[Peer]:
    """Run `ringline serve` on loopback with more arguments, e.g. `--device=CPU`, `--threads=1`.

    `prelude` is Python that runs before anything of ringline is imported.
    """
    start = ["-m", "ringline"]
    if prelude:
        start = ["-c", f"{prelude}\nfrom ringline.cli.main import main\nmain()"]
    command = [*start, "serve", f"--port={port}", *arguments]
    with _peer("ringline node", command, "ringline: ready on ", env, port) as peer:
        yield peer


def run_stock_client(
    workload: str,
    model: str | Path,
    peers: Sequence[Peer | str] = (),
    *,
    tensor_split: Sequence[float] = (),
    threads: int = 1,
    timing: bool = False,
    env: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Run a workload with the stock client over `peers` (or endpoints); without any: local CPU.

    Returns:
        `{"ids": {name: [id, ...]}}`, with `timing` also `"timings"`.

    Raises:
        PeerFailed: the client failed; with its exit code and what it printed.
    """
    endpoints = [peer if isinstance(peer, str) else peer.endpoint for peer in peers]
    command = ["-m", "tests.peers.stock_client", f"--model={model}", f"--workload={workload}"]
    command += [f"--rpc={','.join(endpoints)}", f"--threads={threads}"]
    command += [f"--tensor-split={','.join(map(str, tensor_split))}"] if tensor_split else []
    command += ["--time"] if timing else []
    result: dict[str, Any] = json.loads(run_python(command, env=env))
    return result


def run_python(
    arguments: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    seconds: float = CLIENT_SECONDS,
    stdin: str = "",
) -> str:
    """Run Python with `arguments` in the checkout to its end; what it printed on stdout.

    Raises:
        PeerFailed: its exit code is not 0, or it took longer than `seconds` times patience.
    """
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment(env),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, timeout=patience(seconds))
        except subprocess.TimeoutExpired:
            process.kill()
            stdout, stderr = process.communicate()
            stderr += f"\n(killed after {patience(seconds):g} seconds)"
    if process.returncode != 0:
        name = " ".join(arguments[:3])
        tail = f"{stdout[-LOG_TAIL:]}\n{stderr[-LOG_TAIL:]}"
        raise PeerFailed(f"python {name} {_ending(process.returncode)}:\n{tail}")
    return stdout


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a peer: ours with `extra` on top, output unbuffered."""
    return {**os.environ, "PYTHONUNBUFFERED": "1", **(extra or {})}


def end(process: subprocess.Popen[bytes]) -> int:
    """Ask one process to end, kill it if it does not; its exit code."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(patience(STOP_SECONDS))
        except subprocess.TimeoutExpired:
            process.kill()
    return process.wait()


def read_tail(path: Path, size: int = LOG_TAIL) -> str:
    """The last `size` bytes of a log, as text."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - size))
        return file.read().decode(errors="replace")


@contextmanager
def _peer(
    name: str, command: Sequence[str], ready: str, env: Mapping[str, str] | None, port: int
) -> Iterator[Peer]:
    """Run one peer; its log goes to a temporary file. A port that is named is kept for it."""
    with tempfile.TemporaryDirectory(prefix="ringline-peer-") as folder:
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [sys.executable, *command],
                cwd=ROOT,
                env=environment(env),
                stdin=subprocess.PIPE,  # kept open: a peer may end itself when we are gone
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            with kept_port(port) if port else nullcontext():
                endpoint = _wait_ready(name, process, log_path, ready)
            with _log_in_errors(name, log_path):
                yield Peer(name, endpoint, process, log_path)
        finally:
            end(process)
            if process.stdin:
                process.stdin.close()


@contextmanager
def _log_in_errors(name: str, log_path: Path) -> Iterator[None]:
    """Add the peer's log to an error of the test that uses it; pytest prints such notes."""
    try:
        yield
    except BaseException as error:  # pytest.fail is no Exception
        error.add_note(f"--- log of {name} ---\n{read_tail(log_path)}")
        raise


def _wait_ready(name: str, process: subprocess.Popen[bytes], log_path: Path, ready: str) -> str:
    """Wait for the line `ready` + endpoint in the log; the endpoint."""
    deadline = time.monotonic() + patience(START_SECONDS)
    while True:
        code = process.poll()  # before the log is read: what a dead process printed is all there
        for line in log_path.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(ready) and line.endswith("\n"):
                return line.removeprefix(ready).split()[0]
        if code is not None:
            raise PeerFailed(f"{name} {_ending(code)} before it was ready:\n{read_tail(log_path)}")
        if time.monotonic() > deadline:
            raise PeerFailed(f"{name} did not say {ready!r} in time:\n{read_tail(log_path)}")
        time.sleep(0.02)


def _ending(code: int) -> str:
    """An exit code in words: `exited with 1`, `was ended by SIGABRT`."""
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with {code}"
