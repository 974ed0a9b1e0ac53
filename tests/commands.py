"""The command `ringline` as people run it: a process of its own, with its two streams apart."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.peers.processes import ROOT, environment, patience

#: for one command; most take two or three seconds.
COMMAND_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended: its exit code, and all that it printed."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The sentence that its error is; fails where there is none, or more than a sentence."""
        *talk, last = self.err.splitlines() or [""]
        assert last.startswith("error: "), self.err
        assert not [line for line in talk if line.startswith(("error", "Traceback"))], self.err
        return last.removeprefix("error: ")


@dataclass(frozen=True, slots=True)
class Running:
    """A command that runs; what it prints goes to two files."""

    process: subprocess.Popen[bytes]
    out_path: Path
    err_path: Path

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid

    def wait_for_text(self) -> None:
        """Wait until something is on its stdout.

        Raises:
            AssertionError: it ended before, or takes too long; with what it said.
        """
        deadline = time.monotonic() + patience(COMMAND_SECONDS)
        while not self.out_path.stat().st_size:
            said = self.err_path.read_text("utf-8", "replace")
            assert self.process.poll() is None, f"it ended without a text:\n{said}"
            assert time.monotonic() < deadline, f"it printed no text in time:\n{said}"
            time.sleep(0.01)

    def finish(self, seconds: float = COMMAND_SECONDS) -> Done:
        """Wait until it ends, at most `seconds` times patience.

        Raises:
            AssertionError: it takes too long; with what it said.
        """
        try:
            code = self.process.wait(patience(seconds))
        except subprocess.TimeoutExpired:
            said = self.err_path.read_text("utf-8", "replace")
            raise AssertionError(f"the command did not end in time:\n{said}") from None
        # Bytes: reading text would make one line feed of two characters.
        return Done(code, self.out_path.read_bytes().decode(), self.err_path.read_bytes().decode())


def ringline(*arguments: object, env: Mapping[str, str] | None = None) -> Done:
    """Run a command to its end."""
    with running(*arguments, env=env) as command:
        return command.finish()


def piped(lines: Sequence[str], *arguments: object, env: Mapping[str, str] | None = None) -> Done:
    """Run a command to its end with these lines on its stdin."""
    done = subprocess.run(
        [sys.executable, "-m", "ringline", *map(str, arguments)],
        cwd=ROOT,
        env=environment({"RINGLINE_DEBUG": "0", **(env or {})}),
        input="".join(line + "\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=patience(COMMAND_SECONDS),
    )
    return Done(done.returncode, done.stdout, done.stderr)


@contextmanager
def running(*arguments: object, env: Mapping[str, str] | None = None) -> Iterator[Running]:
    """Run a command while the block runs; it is killed if it has not ended then."""
    with tempfile.TemporaryDirectory(prefix="ringline-command-") as folder:
        out_path, err_path = Path(folder) / "out", Path(folder) / "err"
        with out_path.open("wb") as out, err_path.open("wb") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "ringline", *map(str, arguments)],
                cwd=ROOT,
                env=environment({"RINGLINE_DEBUG": "0", **(env or {})}),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )
        try:
            yield Running(process, out_path, err_path)
        finally:
            process.kill()
            process.wait()
