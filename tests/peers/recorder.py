"""A recording proxy for the base protocol: it keeps every frame that goes through it, as sent.

It knows only what it takes to tell frames apart: a request is `command u8 | size u64 | body`, a
reply `size u64 | body`, and which commands have one. A connection is strictly in order, so one
thread per connection forwards a request and, where there is one, its reply. Never used by ringline.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

#: names by number, as the enum rpc_cmd of ggml-rpc.cpp has them
COMMANDS = (
    "ALLOC_BUFFER",
    "GET_ALIGNMENT",
    "GET_MAX_SIZE",
    "BUFFER_GET_BASE",
    "FREE_BUFFER",
    "BUFFER_CLEAR",
    "SET_TENSOR",
    "SET_TENSOR_HASH",
    "GET_TENSOR",
    "COPY_TENSOR",
    "GRAPH_COMPUTE",
    "GET_DEVICE_MEMORY",
    "INIT_TENSOR",
    "GET_ALLOC_SIZE",
    "HELLO",
    "DEVICE_COUNT",
    "GRAPH_RECOMPUTE",
    "MEMSET_TENSOR",
)
WITHOUT_REPLY = frozenset(
    {
        "FREE_BUFFER",
        "BUFFER_CLEAR",
        "SET_TENSOR",
        "GRAPH_COMPUTE",
        "INIT_TENSOR",
        "GRAPH_RECOMPUTE",
        "MEMSET_TENSOR",
    }
)
REQUEST_HEAD, REPLY_HEAD = struct.Struct("<BQ"), struct.Struct("<Q")


@dataclass(frozen=True, slots=True)
class Exchange:
    """One request and its reply as whole frames; `reply` is None where the command has none."""

    connection: int
    command: str
    request: bytes
    reply: bytes | None


@dataclass(slots=True)
class Recording:
    """What a proxy at `endpoint` has seen: exchanges in the order in which they were completed."""

    endpoint: str
    exchanges: list[Exchange] = field(default_factory=list)


@contextmanager
def recording_proxy(upstream: str) -> Iterator[Recording]:
    """Forward connections from a port of its own to `upstream` (`host:port`) and record them.

    When the block ends, open connections are closed and all threads have ended.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        recording = Recording(f"127.0.0.1:{listener.getsockname()[1]}")
        proxy = _Proxy(listener, upstream, recording)
        accepting = threading.Thread(target=proxy.accept, name="recorder")
        accepting.start()
        try:
            yield recording
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept, which close alone would not
            accepting.join()
            proxy.close()


class _Proxy:
    """The threads and sockets of one proxy."""

    def __init__(self, listener: socket.socket, upstream: str, recording: Recording) -> None:
        self._listener = listener
        host, _, port = upstream.rpartition(":")
        self._upstream = (host, int(port))
        self._recording = recording
        self._sockets: list[socket.socket] = []  # only the accepting thread, until it has ended
        self._threads: list[threading.Thread] = []

    def accept(self) -> None:
        """Take connections until the listener is shut down."""
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._upstream)
            except OSError:
                client.close()
                continue
            for end in (client, server):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            number = len(self._threads)
            thread = threading.Thread(target=self._forward, args=(number, client, server))
            self._sockets += [client, server]
            self._threads.append(thread)
            thread.start()

    def close(self) -> None:
        """Cut what is still open and wait for the threads."""
        for end in self._sockets:
            with suppress(OSError):  # the peer was faster, or the thread has closed it
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()

    def _forward(self, number: int, client: socket.socket, server: socket.socket) -> None:
        """Serve one connection: request on, reply back, until either end is gone."""
        with client, server, suppress(OSError, EOFError):
            while True:
                request = read_frame(client, REQUEST_HEAD)
                name = COMMANDS[request[0]] if request[0] < len(COMMANDS) else "UNKNOWN"
                server.sendall(request)
                reply = None if name in WITHOUT_REPLY else read_frame(server, REPLY_HEAD)
                # Recorded before it is passed on: whoever has the reply finds its exchange here.
                self._recording.exchanges.append(Exchange(number, name, request, reply))
                client.sendall(reply or b"")


def read_frame(stream: socket.socket, head: struct.Struct) -> bytes:
    """Read one whole frame, head and body.

    Raises:
        EOFError: the stream ends before the frame does.
    """
    start = read_exact(stream, head.size)
    return start + read_exact(stream, head.unpack(start)[-1])


def read_exact(stream: socket.socket, size: int) -> bytes:
    """Read `size` bytes; EOFError where the stream ends before."""
    data = bytearray(size)
    view, filled = memoryview(data), 0
    while filled < size:
        count = stream.recv_into(view[filled:])
        if count == 0:
            raise EOFError
        filled += count
    return bytes(data)
