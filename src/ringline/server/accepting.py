"""Taking what waits at a listening socket, without waiting for more."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable
from typing import Final

from ringline.net.endpoint import Endpoint
from ringline.server.log import tell

__all__ = ["accept_all"]

_log = logging.getLogger(__name__)
#: seconds after a failed accept (no descriptors left): do not spin.
_RECOVERY: Final = 0.1


def accept_all(
    listener: socket.socket, receive: Callable[[socket.socket, Endpoint], object]
) -> None:
    """Hand every connection that has come to `receive`, with its address.

    Args:
        listener: non-blocking.
        receive: takes a connection, its own to close.
    """
    while True:
        try:
            sock, address = listener.accept()
        except BlockingIOError:
            return
        except OSError as error:
            text = "cannot accept a connection (%s)"
            tell(_log, logging.WARNING, "no_accept", text, error, errno=error.errno)
            time.sleep(_RECOVERY)
            return
        receive(sock, Endpoint(address[0], address[1]))
