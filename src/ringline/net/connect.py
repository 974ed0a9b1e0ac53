"""Opening connections and listening sockets. Foreign exceptions become ours here."""

from __future__ import annotations

import contextlib
import errno
import select
import socket
import ssl

from ringline.errors import CallerError, DeadlineError, NetworkError, TlsError
from ringline.interrupts import LOOK, deliver_late
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.net.stream import Stream, no_delay
from ringline.net.tls import PLAIN, TlsFiles, TlsSocket, in_words

__all__ = ["connect", "keep_alive", "listen"]


def keep_alive(sock: socket.socket) -> None:
    """Let the kernel notice within about a minute that the other host is gone."""
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def connect(
    endpoint: Endpoint,
    *,
    timeout: float,
    silence: float,
    tls: TlsFiles = PLAIN,
    name: str | None = None,
) -> Stream:
    """Open a TCP connection; every address of the name is tried within one time budget.

    Args:
        endpoint: where to.
        timeout: seconds for all tries together, and for the handshake of TLS.
        silence: what the stream gets, see Stream.
        tls: our certificate; PLAIN: no TLS.
        name: the host that the other end's certificate must name; None: that of the endpoint.

    Raises:
        NetworkError: unknown host, refused, unreachable. DeadlineError: no answer in time.
        TlsError: it does not speak TLS, or its certificate is refused.
        CallerError: a file of ours cannot be used.
    """
    deadline = Deadline(timeout)
    peer = str(endpoint)
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        cause = (
            f"the host name cannot be resolved ({error.strerror}): write its address, or make the "
            "name known to this machine"
        )
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
        if tls:
            secure = _handshake(sock, tls, name or endpoint.host, peer, deadline)
            return Stream(secure, peer=peer, silence=silence)
        return Stream(sock, peer=peer, silence=silence)
    raise NetworkError(f"cannot connect ({cause}): is ringline serve running there?", peer=peer)


def _handshake(
    sock: socket.socket, tls: TlsFiles, name: str, peer: str, deadline: Deadline
) -> TlsSocket:
    """TLS on a socket that we have connected, which is closed where that fails."""
    no_delay(sock)
    try:
        secure = TlsSocket(sock, tls.client_context(), name=name.partition("%")[0])
        poller = select.poll()
        while not secure.handshake():
            poller.register(sock, select.POLLIN | (select.POLLOUT if secure.unsent else 0))
            left = deadline.left_ms() or 0
            if not poller.poll(min(left, int(LOOK * 1000))):
                deliver_late()
                if deadline.passed():
                    cause = f"no handshake of TLS within {deadline.seconds:g} s"
                    raise DeadlineError(cause, peer=peer, seconds=deadline.seconds or 0.0)
    except (OSError, ValueError) as error:  # ValueError: a name that no certificate can have
        sock.close()
        text = in_words(error) if isinstance(error, OSError) else str(error)
        certificate = isinstance(error, ssl.SSLCertVerificationError)
        raise TlsError(text, peer=peer, certificate=certificate) from None
    except BaseException:
        sock.close()
        raise
    return secure


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
        raise _no_listener(endpoint, error) from None
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(backlog)
    except OSError as error:
        sock.close()
        raise _no_listener(endpoint, error) from None
    return sock


def _no_listener(endpoint: Endpoint, error: OSError) -> CallerError:
    if error.errno == errno.EADDRINUSE:
        advice = "something listens there already: end it, or choose another port"
    elif error.errno in (errno.EACCES, errno.EPERM):
        advice = "choose a port above 1023"
    else:
        advice = "give an address or a name of this machine"
    return CallerError(f"cannot listen on {endpoint} ({error.strerror}): {advice}")
