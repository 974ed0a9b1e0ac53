"""Run pip with its output in a log file, and say in one sentence what went wrong.

Standard library only: this runs before anything is installed. Never prints pip's own output, except
the end of the log when pip fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from ringline.errors import LibraryError, RinglineError

__all__ = ["run_pip", "say"]

#: seconds between two lines that say how far a build is.
_REPORT_EVERY = 20.0
_TAIL_LINES = 15

_OFFLINE = re.compile(
    r"Failed to establish a new connection|name resolution|NameResolutionError|ProxyError"
    r"|Network is unreachable|ConnectTimeout|ReadTimeout|Connection (?:refused|reset)"
)
_NOT_FOUND = re.compile(r"ERROR: No matching distribution found for (\S+)")
_NINJA_STEP = re.compile(r"\[(\d+)/(\d+)\]")


def run_pip(
    python: Path, arguments: list[str], *, log: Path, what: str, environment: Mapping[str, str]
) -> None:
    """Run `python -m pip ARGUMENTS` and wait for its end.

    Args:
        python: interpreter whose pip is run.
        arguments: what follows `python -m pip`.
        log: file that gets all of pip's output; its folder exists.
        what: what is being done, for messages: "build llama-cpp-python".
        environment: environment of pip.

    Raises:
        RinglineError: the package index could not be reached, or has no such package.
        LibraryError: pip failed for another reason; the log has the details.
    """
    command = [str(python), "-m", "pip", "--disable-pip-version-check", "--retries", "2"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
        )
        try:
            _wait(process, log)
        finally:
            # Only a Ctrl-C leaves pip running here.
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode != 0:
        raise _failure(log, what)


def _wait(process: subprocess.Popen[bytes], log: Path) -> None:
    start = time.monotonic()
    while True:
        try:
            process.wait(timeout=_REPORT_EVERY)
        except subprocess.TimeoutExpired:
            steps = _NINJA_STEP.findall(log.read_text(errors="replace"))
            done = f", {steps[-1][0]} of {steps[-1][1]} files" if steps else ""
            say(f"  {time.monotonic() - start:.0f} s{done}")
        else:
            return


def _failure(log: Path, what: str) -> RinglineError:
    text = log.read_text(errors="replace")
    not_found = _NOT_FOUND.search(text)
    if _OFFLINE.search(text):
        return RinglineError(
            f"cannot {what}: the package index does not answer; check the network and pip's "
            f"settings, then run the same command again (log: {log})"
        )
    if not_found:
        return RinglineError(
            f"cannot {what}: the package index has no {not_found[1]}; "
            f"check the network and pip's index settings (log: {log})"
        )
    for line in text.splitlines()[-_TAIL_LINES:]:
        say(f"  | {line}")
    return LibraryError(f"cannot {what}: pip failed, its output ends as shown above (log: {log})")


def say(line: str) -> None:
    """Tell a person what is going on, on stderr."""
    print(line, file=sys.stderr, flush=True)
