"""HTTP requests to a server on loopback, a connection for each, that can all be hung up at once."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from ringline.bench.programs import HOST
from ringline.errors import NetworkError

__all__ = ["Calls"]

#: seconds without a byte of one answer.
_PATIENCE: Final = 600.0
_Answer = TypeVar("_Answer")


class Calls:
    """The requests under way to one server; for any number of threads."""

    def __init__(self, port: int) -> None:
        self._port = port
        # Guards the rest.
        self._lock = threading.Lock()
        self._open: set[http.client.HTTPConnection] = set()
        self._stopped = False

    def make(self, exchange: Callable[[http.client.HTTPConnection], _Answer]) -> _Answer | None:
        """Do one exchange; None: it was hung up before its end.

        Args:
            exchange: asks over a connection, and returns what it makes of the answer.

        Raises:
            NetworkError: the server does not answer. What `exchange` raises besides.
        """
        connection = http.client.HTTPConnection(HOST, self._port, timeout=_PATIENCE)
        with self._lock:
            if self._stopped:
                return None
            self._open.add(connection)
        try:
            answer = exchange(connection)
        except (OSError, http.client.HTTPException) as error:
            if self._is_stopped():
                return None
            raise NetworkError(str(error), peer=f"{HOST}:{self._port}") from error
        finally:
            with self._lock:
                self._open.discard(connection)
            connection.close()
        # A stream that is hung up ends like one that is over.
        return None if self._is_stopped() else answer

    def hang_up(self) -> None:
        """End those under way, and make no more."""
        with self._lock:
            self._stopped = True
            for connection in self._open:
                if connection.sock is not None:
                    with contextlib.suppress(OSError):
                        connection.sock.shutdown(socket.SHUT_RDWR)

    def _is_stopped(self) -> bool:
        with self._lock:
            return self._stopped
