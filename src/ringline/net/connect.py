"""Opening connections and listening sockets. Foreign exceptions become ours here."""

from __future__ import annotations

import contextlib
import socket

from ringline.errors import CallerError, DeadlineError, NetworkError
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.net.stream import Stream

__all__ = ["connect", "keep_alive", "listen"]


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice within about a minute that the other host is gone."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def connect(endpoint: Endpoint, *, timeout: float, silence: float) -> Stream:
    """Open a TCP connection; every address of the name is tried within one time budget.

    Args:
        endpoint: where to.
        timeout: seconds for all tries together.
        silence: what the stream gets, see Stream.

    Raises:
        NetworkError: unknown host, refused, unreachable. DeadlineError: no answer in time.
    """
    deadline = Deadline(timeout)
    peer = str(endpoint)
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        cause = f"the host name cannot be resolved ({error.strerror})"
        raise NetworkError(cause, peer=peer) from None
    cause = "no address"
    for family, kind, proto, _, address in found:
        sock = socket.socket(family, kind, proto)
        sock.settimeout(max(deadline.left() or 0.0, 0.01))
        try:
            sock.connect(address)
        except OSError as error:
            sock.close()
            if isinstance(error, TimeoutError):
                raise DeadlineError(
                    f"no answer to a connection within {timeout:g} s", peer=peer, seconds=timeout
                ) from None
            cause = error.strerror or str(error)
            continue
        keep_alive(sock)
        return Stream(sock, peer=peer, silence=silence)
    raise NetworkError(f"cannot connect ({cause}): is ringline serve running there?", peer=peer)


def listen(endpoint: Endpoint, *, backlog: int = 128) -> socket.socket:
    """A listening socket on the first address of the name; port 0 takes a free one.

    Raises:
        CallerError: the address cannot be bound; says why.
    """
    try:
        found = socket.getaddrinfo(
            endpoint.host, endpoint.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        # A name may have both kinds of address; clients of llama.cpp know IPv4 only.
        family, kind, proto, _, address = min(found, key=lambda a: a[0] != socket.AF_INET)
        sock = socket.socket(family, kind, proto)
    except OSError as error:
        raise CallerError(f"cannot listen on {endpoint}: {error.strerror}") from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise CallerError(f"cannot listen on {endpoint}: {error.strerror}") from None
    return sock
