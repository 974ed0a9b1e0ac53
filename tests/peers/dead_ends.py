"""Endpoints where no server answers, and ports that wait for one that comes back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def refusing_endpoint() -> Iterator[str]:
    """An endpoint that refuses connections: the port is bound, so nobody gets it, but silent."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


@contextmanager
def kept_port(port: int) -> Iterator[None]:
    """Nobody is given this port by the kernel while the block runs, as server or as client.

    A server that asks for it by its number can have it: both have SO_REUSEADDR, and one listens.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(("127.0.0.1", port))
        yield


@contextmanager
def deaf_endpoint() -> Iterator[str]:
    """An endpoint where the kernel accepts connections and nobody ever reads or answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
