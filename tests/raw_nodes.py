"""A node whose two streams are read apart, and whose limits a test can change before it starts."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.peers.processes import ROOT, environment


@contextmanager
def raw_node(*arguments: str, prelude: str = "") -> Iterator[subprocess.Popen[str]]:
    """A node whose stdout and stderr we read apart; `prelude` is Python that runs before it."""
    code = f"from ringline import settings\n{prelude}\nfrom ringline.cli.main import main\nmain()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, "serve", "--port=0", *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout, process.stderr):
            pipe.close()


def read_banner(process: subprocess.Popen[str]) -> list[str]:
    """What a node prints up to and with its ready line."""
    lines = []
    for line in process.stdout:
        lines.append(line.rstrip("\n"))
        if line.startswith("ringline: ready on "):
            return lines
    pytest.fail(f"the node ended before it was ready: {process.stderr.read()}")


def endpoint_of(banner: list[str]) -> str:
    return banner[-1].removeprefix("ringline: ready on ")
