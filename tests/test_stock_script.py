"""llama.cpp's own test of its RPC server passes with `ringline serve` in the server's place."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.llama_source import llama_source
from tests.peers.processes import ROOT, environment, patience
from tests.peers.stock_library import library_folder
from tests.peers.stock_server import hold_port

pytestmark = pytest.mark.network

#: by the names that are also their SONAMEs: the wheel holds copies where others have links.
LIBRARIES = ("libggml-rpc.so.0", "libggml.so.0", "libggml-cpu.so.0", "libggml-base.so.0")


@pytest.fixture(scope="module")
def source() -> Path:
    return llama_source()


@pytest.fixture(scope="module")
def client(source, tmp_path_factory) -> Path:
    """The stock client that the script runs, compiled against the installed libraries."""
    program = tmp_path_factory.mktemp("client") / "test-rpc-multi-server"
    folder = library_folder()
    subprocess.run(
        [
            "g++",
            "-std=c++17",
            *("-I", source / "ggml/include", "-I", source / "ggml/src"),
            source / "tests/test-rpc-multi-server.cpp",
            *("-o", program),
            *(folder / name for name in LIBRARIES),
            f"-Wl,-rpath,{folder}",
        ],
        check=True,
    )
    return program


@pytest.fixture
def server(tmp_path) -> Path:
    """What the script runs as the server; its log is kept."""
    file = tmp_path / "server"
    command = f'exec {sys.executable} -m ringline serve "$@" 2>> {tmp_path / "log"}'
    file.write_text(f"#!/bin/sh\n{command}\n")
    file.chmod(0o755)
    return file


def run(script: Path, *arguments: Path) -> tuple[int, str]:
    """Run a script to its end; its exit code, and what it printed."""
    with subprocess.Popen(
        ["bash", script, *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=patience(60))
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # where it hangs, all that it started
    return process.returncode, said


@pytest.fixture
def script(source, tmp_path) -> Iterator[Path]:
    """The script, with ports that nobody else has.

    It takes two of 10 000 by its process id, and the kernel may have given out one of them. These
    are bound here, and Linux lets who sets SO_REUSEADDR listen there.
    """
    text = (source / "tests/test-rpc-multi-server.sh").read_text()
    with ExitStack() as stack:
        for line in ("port_a=$((40000 + $$ % 10000))", "port_b=$((port_a + 1))"):
            held = stack.enter_context(hold_port("127.0.0.1", 0))
            assert line in text
            text = text.replace(line, f"{line.partition('=')[0]}={held.getsockname()[1]}")
        file = tmp_path / "script.sh"
        file.write_text(text)
        yield file


def test_the_script_passes_on_two_ringline_nodes(script, client, server, tmp_path):
    code, said = run(script, server, client)
    assert code == 0, said
    log = (tmp_path / "log").read_text()
    assert log.count("begins: 127.0.0.1:") >= 2, log
