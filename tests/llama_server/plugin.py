"""A pytest plugin in the place of the tests' own conftest, which fetches models from a hub.

A server is stopped after each test; its port comes from the kernel.
"""

from __future__ import annotations

import socket
import sys
import types
from collections.abc import Iterator

import pytest

# It fetches models, which no test that is run here does.
sys.modules.setdefault("wget", types.ModuleType("wget"))


@pytest.fixture(autouse=True)
def _port_and_end(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the test's servers a port, and end them."""
    import utils  # of the tests, on whose path this runs

    # The port stays ours until the end, and the server may listen there: see tests.peers.dead_ends.
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        monkeypatch.setattr(utils.ServerProcess, "server_port", kept.getsockname()[1])
        yield
        for server in set(utils.server_instances):
            server.stop()
