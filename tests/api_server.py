"""`ringline api` as people run it, for the tests: a process, its address, its engine's process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.peers.process_tree import children
from tests.peers.processes import ROOT, environment, patience, read_tail

READY = "ringline: api ready on "
START_SECONDS, ANSWER_SECONDS = 120.0, 120.0


@dataclass(frozen=True, slots=True)
class Answer:
    """What came over HTTP; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error in OpenAI's shape; fails where there is none."""
        error = self.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}, error
        assert error["message"], error
        return error


@dataclass(frozen=True, slots=True)
class ApiServer:
    """A server that runs."""

    process: subprocess.Popen[bytes]
    log_path: Path
    url: str

    def log(self) -> str:
        """What it has printed."""
        return read_tail(self.log_path)

    def engine_pid(self) -> int:
        """The process of its engine; fails where there is none."""
        found = [pid for pid in children(self.process.pid) if b"engine.process" in _cmdline(pid)]
        assert len(found) == 1, (found, self.log())
        return found[0]

    def ask(
        self,
        path: str,
        body: object = None,
        *,
        headers: Mapping[str, str] | None = None,
        method: str | None = None,
    ) -> Answer:
        """One request; a body that is neither None nor bytes is sent as JSON."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path,
            data,
            {"Content-Type": "application/json", **(headers or {})},
            method=method,
        )
        try:
            with urllib.request.urlopen(request, timeout=patience(ANSWER_SECONDS)) as answer:
                return Answer(answer.status, _lower(answer.headers), answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, _lower(error.headers), error.read())

    def wait_for(
        self,
        path: str,
        status: int,
        *,
        body: object = None,
        says: str = "",
        seconds: float = START_SECONDS,
    ) -> Answer:
        """Ask until that status comes, and `says`; fails after a while, with the server's log."""
        deadline = time.monotonic() + patience(seconds)
        while (answer := self.ask(path, body)).status != status or says not in str(answer.body):
            assert time.monotonic() < deadline, f"{path} is {answer}:\n{self.log()}"
            time.sleep(0.02)
        return answer

    def wait_idle(self) -> None:
        """Wait until no slot has a request; fails after a while, with the server's log."""
        deadline = time.monotonic() + patience(START_SECONDS)
        while any(slot["is_processing"] for slot in self.ask("/slots").json()):
            assert time.monotonic() < deadline, f"a slot stays busy:\n{self.log()}"
            time.sleep(0.02)

    def wait_log(self, text: str) -> None:
        """Wait until it has printed that; fails after a while."""
        deadline = time.monotonic() + patience(START_SECONDS)
        while text not in self.log():
            assert time.monotonic() < deadline, f"it never said {text!r}:\n{self.log()}"
            time.sleep(0.02)

    def stop(self, number: int = signal.SIGTERM, *, seconds: float = START_SECONDS) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.process.wait(patience(seconds))


@contextmanager
def api_server(
    model: Path, *options: object, env: Mapping[str, str] | None = None, ready: str = READY
) -> Iterator[ApiServer]:
    """Run a server of a model on a free port while the block runs; it is killed afterwards."""
    command = [sys.executable, "-m", "ringline", "api", "-m", model, "--port", 0, "--no-repack"]
    with tempfile.TemporaryDirectory(prefix="ringline-api-") as folder:
        log_path = Path(folder) / "log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                [*map(str, command), "-t", "1", *map(str, options)],
                cwd=ROOT,
                env=environment({"RINGLINE_DEBUG": "0", "RINGLINE_API_KEY": "", **(env or {})}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        try:
            url = _wait_for(process, log_path, ready)
            try:
                yield ApiServer(process, log_path, url)
            except BaseException as error:  # pytest.fail is no Exception
                error.add_note(f"--- log of ringline api ---\n{read_tail(log_path)}")
                raise
        finally:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], log_path: Path, ready: str) -> str:
    """Wait for a line; the address in it."""
    deadline = time.monotonic() + patience(START_SECONDS)
    while True:
        code = process.poll()
        for line in log_path.read_text(errors="replace").splitlines(keepends=True):
            if line.startswith(ready) and line.endswith("\n"):
                return line.removeprefix(ready).split()[0]
        said = read_tail(log_path)
        assert code is None, f"ringline api ended with {code} before it was ready:\n{said}"
        assert time.monotonic() < deadline, f"ringline api did not say {ready!r} in time:\n{said}"
        time.sleep(0.02)


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


def _cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def pid_exists(pid: int) -> bool:
    """Whether a process runs."""
    return os.path.exists(f"/proc/{pid}")


def events(body: bytes) -> list[dict[str, Any]]:
    """The objects of a stream that ends with [DONE]; fails where it does not."""
    lines = [line for line in body.decode().split("\n\n") if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]", lines[-1]
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
