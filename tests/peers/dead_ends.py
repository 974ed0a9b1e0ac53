"""Endpoints where no server answers, for tests of what a client does then."""

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
def deaf_endpoint() -> Iterator[str]:
    """An endpoint where the kernel accepts connections and nobody ever reads or answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=16) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"
