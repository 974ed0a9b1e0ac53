"""Two ends of a TLS connection in this process, after their handshake."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable

from ringline.net.stream import Stream
from ringline.net.tls import TlsFiles, TlsSocket
from tests.peers.processes import patience


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        one = socket.create_connection(listener.getsockname())
        other, _ = listener.accept()
    return one, other


def tls_pair(files: TlsFiles) -> tuple[TlsSocket, TlsSocket]:
    """The end that has dialled, and the other one."""
    one, other = tcp_pair()
    client = TlsSocket(one, files.client_context(), name="127.0.0.1")
    server = TlsSocket(other, files.server_context(), server_side=True)
    done = [False, False]
    until = time.monotonic() + patience(20)
    while not all(done):
        assert time.monotonic() < until, "the handshake does not end"
        done = [end.handshake() for end in (client, server)]
    return client, server


def insist(action: Callable[[], int], end: TlsSocket | socket.socket, event: int) -> int:
    """Do what may have to wait."""
    poller = select.poll()
    poller.register(end, event)
    until = time.monotonic() + patience(20)
    while True:
        try:
            return action()
        except BlockingIOError:
            assert time.monotonic() < until, "nothing moves"
            poller.poll(100)


def send_all(end: TlsSocket | socket.socket, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[insist(lambda: end.sendmsg([rest]), end, select.POLLOUT) :]  # noqa: B023


def receive(end: TlsSocket | socket.socket, size: int) -> bytes:
    """What comes, up to `size` bytes or the end."""
    target, done = memoryview(bytearray(size)), 0
    while done < size:
        count = insist(lambda: end.recv_into(target[done:]), end, select.POLLIN)  # noqa: B023
        if not count:
            break
        done += count
    return bytes(target[:done])


def stream(end: TlsSocket) -> Stream:
    seconds = patience(20)
    return Stream(end, peer="the other end", silence=seconds)
