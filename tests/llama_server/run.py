"""Runs tests of llama.cpp's server against `ringline api`; what became of each."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

import make_model
from make_model import ModelSpec
from tests.encoder_model import make_encoder
from tests.llama_server.binary import ENCODER, MODELS, WRITER
from tests.llama_source import llama_source
from tests.peers.processes import ROOT, patience

__all__ = ["collect", "run_tests"]

#: for one test; the first request of theirs may wait for a server to start.
_TEST_SECONDS: Final = 300.0
_RUN_SECONDS: Final = 3600.0


def collect() -> list[str]:
    """All tests, as `test_basic.py::test_server_props`, once for each of their cases."""
    with _prepared() as folder:
        done = _pytest(folder, ["--collect-only", "-q", "unit"])
        names = [line for line in done.splitlines() if line.startswith("unit/")]
        return [name.removeprefix("unit/").partition("[")[0] for name in names]


def run_tests(names: Sequence[str]) -> dict[str, list[str]]:
    """Run tests, or whole files; for each test what became of its cases: passed, failed, skipped.

    Args:
        names: as collect() gives them.
    """
    with _prepared() as folder:
        report = folder / "report.xml"
        tests = [f"unit/{name}" for name in names]
        _pytest(folder, [f"--junitxml={report}", "-q", "--tb=short", *tests])
        return _outcomes(report)


@contextmanager
def _prepared() -> Iterator[Path]:
    """A copy of the tests, since they write into their folder, with a server and its models."""
    with tempfile.TemporaryDirectory(prefix="llama-server-tests-") as name:
        folder = Path(name)
        shutil.copytree(llama_source() / "tools" / "server" / "tests", folder / "tests")
        models = folder / "models"
        models.mkdir()
        # Like stories260K: a SentencePiece vocabulary of 512 tokens, and no chat template.
        make_model.make_model(models / WRITER, ModelSpec(type="q8_0"))
        make_encoder(models / ENCODER, context=512)
        binary = folder / "llama-server"
        binary.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tests.llama_server.binary "$@"\n')
        binary.chmod(binary.stat().st_mode | stat.S_IXUSR)
        yield folder


def _pytest(folder: Path, arguments: Sequence[str]) -> str:
    """Run pytest in the tests' folder; what it printed."""
    paths = [ROOT / "src", ROOT, ROOT / "tools", folder / "tests"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "LLAMA_SERVER_BIN_PATH": str(folder / "llama-server"),
        MODELS: str(folder / "models"),
    }
    options = ["--noconftest", "-p", "tests.llama_server.plugin", "-p", "no:cacheprovider"]
    options += ["-c", "pytest.ini", f"--timeout={patience(_TEST_SECONDS):g}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *arguments],
        cwd=folder / "tests",
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=patience(_RUN_SECONDS),
    )
    if done.returncode not in (0, 1):  # 1: tests failed
        raise AssertionError(f"pytest ended with {done.returncode}:\n{done.stdout[-6000:]}")
    return done.stdout


def _outcomes(report: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        file = case.get("classname", "").rpartition(".")[2] + ".py"
        test = f"{file}::{case.get('name', '').partition('[')[0]}"
        outcome = "passed"
        for child in case:
            if child.tag in ("failure", "error"):
                outcome = "failed"
            elif child.tag == "skipped":
                outcome = "skipped"
        found.setdefault(test, []).append(outcome)
    return found
