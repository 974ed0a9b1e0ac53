"""A recording proxy for all commands: what a coordinator says to a node, and the answers.

tests/peers/recorder.py knows the base protocol alone and nothing of ringline; here the tables of
ringline say what has a reply. A connection is strictly in order, so one thread each forwards a
request and, where there is one, its reply.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ringline.wire.commands import RULES, Command, Reply
from ringline.wire.frames import ERROR_HEADER, ERROR_SIZE, REPLY_HEADER, REQUEST_HEADER
from tests.peers.recorder import read_exact


@dataclass(frozen=True, slots=True)
class Said:
    """One request and its reply, without their headers; an error's text is no reply."""

    command: Command
    body: bytes
    reply: bytes = b""


@contextmanager
def recorded(target: str) -> Iterator[tuple[str, list[Said]]]:
    """Forward from a port of its own to `target`: the endpoint, and what was said, in order."""
    said: list[Said] = []
    sockets: list[socket.socket] = []
    threads: list[threading.Thread] = []
    host, _, port = target.rpartition(":")

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                node = socket.create_connection((host, int(port)))
                for end in (client, node):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sockets.extend((client, node))
                threads.append(threading.Thread(target=_forward, args=(client, node, said)))
                threads[-1].start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}", said
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            accepting.join()
            for end in sockets:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
            for thread in threads:
                thread.join()


def _forward(client: socket.socket, node: socket.socket, said: list[Said]) -> None:
    with client, node, suppress(OSError, EOFError):
        while True:
            head = read_exact(client, REQUEST_HEADER.size)
            number, size = REQUEST_HEADER.unpack(head)
            body = read_exact(client, size)
            node.sendall(head + body)
            reply, whole = b"", b""
            if RULES[Command(number)].reply is not Reply.NONE:
                reply, whole = _read_reply(node)
            said.append(Said(Command(number), body, reply))
            client.sendall(whole)


def _read_reply(node: socket.socket) -> tuple[bytes, bytes]:
    """A reply's body, and the whole frame."""
    head = read_exact(node, REPLY_HEADER.size)
    (size,) = REPLY_HEADER.unpack(head)
    if size != ERROR_SIZE:
        body = read_exact(node, size)
        return body, head + body
    more = read_exact(node, ERROR_HEADER.size)
    return b"", head + more + read_exact(node, ERROR_HEADER.unpack(more)[1])
