"""llama.cpp's own test of its RPC server passes with `ringline serve` in the server's place."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.llama_source import llama_source
from tests.peers.processes import ROOT, environment, patience
from tests.peers.stock_library import library_folder

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


def test_the_script_passes_on_two_ringline_nodes(source, client, server, tmp_path):
    code, said = run(source / "tests/test-rpc-multi-server.sh", server, client)
    assert code == 0, said
    log = (tmp_path / "log").read_text()
    assert log.count("begins: 127.0.0.1:") >= 2, log
