"""A real `ringline api` for the tests of the page: started, killed and started again at one address."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.peers import process_tree
from tests.peers.processes import ROOT, PeerFailed, end, environment, patience, read_tail

START_SECONDS = 120.0


@dataclass
class Server:
    """A server at an address that it keeps when it is started again."""

    model: Path
    nodes: Sequence[str]
    log_path: Path
    arguments: Sequence[str] = ()
    port: int = field(default_factory=lambda: free_port())
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def start(self, *, ready: bool = True) -> None:
        """Start it, and wait until its engine is ready, or until it listens."""
        command = ["-m", "ringline", "api", f"--model={self.model}", f"--port={self.port}"]
        command += [f"--rpc={','.join(self.nodes)}", "--parallel=4", *self.arguments]
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, *command], cwd=ROOT, env=environment(), stdout=log, stderr=log
            )
        self.wait(200 if ready else None)

    def wait(self, status: int | None = 200) -> None:
        """Wait until /health answers with a status; None: until it answers at all."""
        deadline = time.monotonic() + patience(START_SECONDS)
        while (found := self.health()) != status:
            if status is None and found is not None:
                return
            assert self.process is not None
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise PeerFailed(f"the server is not there:\n{read_tail(self.log_path)}")
            time.sleep(0.1)

    def health(self) -> int | None:
        """The status of /health, None where nobody answers."""
        try:
            return self.get("health").status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return None

    def get(self, path: str, *, method: str = "GET", **headers: str) -> Any:
        """Ask for a path; names of headers are written with _."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + path, method=method, headers=named)
        with urllib.request.urlopen(request, timeout=patience(30)) as response:
            response.body = response.read()
            return response

    def engine_pid(self) -> int:
        """The process of its engine, its only child."""
        assert self.process is not None
        (pid,) = process_tree.children(self.process.pid)
        return pid

    def kill_engine(self) -> None:
        os.kill(self.engine_pid(), signal.SIGKILL)

    def kill(self) -> None:
        """Kill it without warning; its engine ends by itself."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Ask it to end; its exit code."""
        return end(self.process) if self.process else 0


@contextmanager
def api_server(
    model: Path, nodes: Sequence[str], folder: Path, *arguments: str
) -> Iterator[Server]:
    """A server whose engine is ready; its log is shown with an error."""
    server = Server(model, nodes, folder / "api.log", arguments)
    try:
        server.start()
        yield server
    except BaseException as error:
        error.add_note(f"--- log of the server ---\n{read_tail(server.log_path)}")
        raise
    finally:
        server.stop()


def free_port() -> int:
    """A port of the kernel's choice that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def answer(response: Any) -> Any:
    """The JSON of a response."""
    return json.loads(response.body)
