"""What the tests share: the model, the reference ids of the local CPU, patience, the tripwire."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

import make_model
from make_model import ModelSpec
from tests.peers import processes
from tests.peers.tripwire import tripwire_environment

Ids = dict[str, list[int]]

# Who starts the tests in the background (nohup, a shell's &) has them ignore Ctrl-C and the end of
# the terminal, and so has every command that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)

# hypothesis' own profile for CI, wherever the tests run: the same examples in every run, and no
# example fails because the machine was slow (without it, one may take 200 ms).
settings.load_profile("ci")


@pytest.fixture(scope="session")
def model_path() -> Path:
    """The demo model, fetched once; RINGLINE_TEST_MODEL names another GGUF to use instead."""
    chosen = os.environ.get("RINGLINE_TEST_MODEL")
    if chosen:
        return Path(chosen)
    from ringline.engine.demo_model import ensure_demo_model

    return ensure_demo_model()


@pytest.fixture(scope="session")
def local_ids(model_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Ids]:
    """The reference: `local_ids(workload)` is what the local CPU says, computed once a session."""
    folder = tmp_path_factory.mktemp("local-ids")

    def ids(workload: str) -> Ids:
        file = folder / f"{workload}.json"
        if not file.exists():
            file.write_text(json.dumps(processes.run_stock_client(workload, model_path)["ids"]))
        found: Ids = json.loads(file.read_text())
        return found

    return ids


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of 75 MB with random weights: its greedy text does not end by itself."""
    spec = ModelSpec(layers=8, embd=512, heads=8, kv_heads=4, ff=1024, vocab=2000)
    return make_model.make_model(tmp_path_factory.mktemp("endless") / "endless.gguf", spec)


@pytest.fixture(scope="session")
def patience() -> Callable[[float], float]:
    """`patience(seconds)`: how long to wait on this machine for what takes `seconds` on most."""
    return processes.patience


@pytest.fixture(scope="session")
def rpc_tripwire_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process that aborts when anything calls into libggml-rpc."""
    return tripwire_environment(tmp_path_factory.mktemp("tripwire"))
