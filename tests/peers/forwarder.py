"""A TCP forwarder in front of a peer that can stop taking connections: a way that is blocked.

The coordinator that came first keeps its connection; whoever connects later (a node that wants to
send directly) is refused, or met with silence. Single connections can be cut, or go on as if all
were well while nothing arrives any more.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from tests.peers.processes import patience


class Forwarder:
    """Listens on a port of its own and forwards to `target`; `endpoint` is what clients use."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self.accepted = 0
        self._deaf = False
        self._sockets: list[socket.socket] = []
        #: both ends of each connection, in the order of their coming; what was cut is no more.
        self._ways: list[tuple[socket.socket, socket.socket]] = []
        self._dark: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._acceptor = self._start(self._accept)

    def refuse(self) -> None:
        """Take no further connection: they are refused by the kernel.

        One that was being taken is there when this returns, so that cut() ends it too.
        """
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join(patience(30))
        assert not self._acceptor.is_alive(), "the forwarder is still taking a connection"
        self._listener.close()

    def accept_again(self) -> None:
        """Take connections again, after refuse()."""
        host, _, port = self.endpoint.rpartition(":")
        self._listener = socket.create_server((host, int(port)))
        self._acceptor = self._start(self._accept)

    def go_deaf(self) -> None:
        """Take further connections, but never say anything on them."""
        self._deaf = True

    def cut(self, first: int) -> int:
        """End the connections that came after `first` others, as a router that restarts would.

        Returns:
            How many there were.
        """
        ended, self._ways[first:] = self._ways[first:], []
        for way in ended:
            for sock in way:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)
        return len(ended)

    def swallow(self, first: int) -> int:
        """Forget from now on what comes over the connections that came after `first` others.

        Returns:
            How many there are.
        """
        self._dark.update(sock for way in self._ways[first:] for sock in way)
        return len(self._ways[first:])

    def close(self) -> None:
        """End all connections."""
        self.refuse()
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(patience(30))
            assert not thread.is_alive(), "a thread of the forwarder does not end"
        for sock in self._sockets:
            sock.close()

    def _start(self, run: Callable[..., None], *args: socket.socket) -> threading.Thread:
        thread = threading.Thread(target=run, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._sockets.append(client)
            if self._deaf:
                continue
            try:
                node = socket.create_connection(self._target)
            except OSError:  # nobody listens there any more: as if the client had found out itself
                client.close()
                continue
            self._sockets.append(node)
            self._ways.append((client, node))
            for source, sink in ((client, node), (node, client)):
                self._start(self._pump, source, sink)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                if source not in self._dark:
                    sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextmanager
def forwarder(target: str) -> Iterator[Forwarder]:
    """A forwarder to the peer at `target`, closed at the end."""
    proxy = Forwarder(target)
    try:
        yield proxy
    finally:
        proxy.close()
