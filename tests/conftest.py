"""What the tests share: the model, the reference ids of the local CPU, patience, the tripwire."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers import processes
from tests.peers.tripwire import tripwire_environment

Ids = dict[str, list[int]]


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
def patience() -> Callable[[float], float]:
    """`patience(seconds)`: how long to wait on this machine for what takes `seconds` on most."""
    return processes.patience


@pytest.fixture(scope="session")
def rpc_tripwire_env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Environment of a process that aborts when anything calls into libggml-rpc."""
    return tripwire_environment(tmp_path_factory.mktemp("tripwire"))
