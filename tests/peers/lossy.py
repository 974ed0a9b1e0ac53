"""A proxy in front of a node that spoils chosen connections: late, in pieces, cut, deaf.

It reads the requests that go through it as frames, so it knows who speaks (the client, a connection
attached to its session, or another node) and hits exactly the command that it is told to. Bytes of
replies are passed on as they come. One thread a direction; all end with close(). Never used by
ringline.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import Enum, auto

from ringline.wire.commands import Command
from tests.peers.processes import patience
from tests.peers.recorder import REQUEST_HEAD, read_exact

#: what an EXT_HELLO says of who speaks; a stock client says nothing.
ROLES = ("client", "attach", "peer")
#: bulk is passed in one piece behind so many bytes of its frame: byte by byte it would take hours.
_SPLIT_HEAD, _SPLIT_WHOLE = 512, 4096
_BULK = 1 << 18


class Harm(Enum):
    """What happens at the chosen command; until then, and to others, nothing."""

    #: both directions of the connection end when the command has been passed on.
    CUT = auto()
    #: half of its frame is passed on, then both directions end.
    CUT_INSIDE = auto()
    #: nothing more is read from whoever speaks: what it sends stays with it.
    DEAF = auto()
    #: what it sends is read and forgotten, as if all were well.
    SWALLOW = auto()
    #: the node sees the end of what it is sent, and may go on answering.
    HALF_CLOSE = auto()


@dataclass(frozen=True, slots=True)
class Fault:
    """What to do to which connections.

    Attributes:
        roles: of those who speak.
        delay: seconds that each piece is late, in both directions.
        split: whether pieces are single bytes (see _SPLIT_HEAD).
        harm: what to do at the chosen command, once.
        command: which; None: any.
        count: the how-manieth of that command over such connections, from 1.
    """

    roles: frozenset[str] = frozenset(ROLES)
    delay: float = 0.0
    split: bool = False
    harm: Harm | None = None
    command: Command | None = None
    count: int = 1


class Lossy:
    """Listens on a port of its own and forwards to `target`; `endpoint` is what clients use."""

    def __init__(self, target: str, fault: Fault) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self.fault = fault
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"127.0.0.1:{self._listener.getsockname()[1]}"
        #: set once the harm is done.
        self.struck = threading.Event()
        #: guards _seen.
        self._lock = threading.Lock()
        self._seen = 0
        self._ended = threading.Event()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def close(self) -> None:
        """End all connections and threads: one that is being taken is taken first."""
        self._ended.set()
        acceptor, *_ = self._threads
        self._shut(self._listener)
        self._join(acceptor)
        for sock in self._sockets:
            self._shut(sock)
        for thread in self._threads:
            self._join(thread)
        for sock in (self._listener, *self._sockets):
            sock.close()

    @staticmethod
    def _shut(sock: socket.socket) -> None:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)

    @staticmethod
    def _join(thread: threading.Thread) -> None:
        thread.join(patience(30))
        assert not thread.is_alive(), "a thread of the proxy does not end"

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    node = socket.create_connection(self._target)
                except OSError:  # nobody listens there any more
                    client.close()
                    continue
                way = _Way(self, client, node)
                self._sockets += [way.client, way.node]
                for run in (way.requests, way.replies):
                    self._threads.append(threading.Thread(target=run, daemon=True))
                    self._threads[-1].start()

    def strikes(self, command: int, role: str) -> Harm | None:
        """The harm that this command suffers, if it is the one."""
        fault = self.fault
        if fault.harm is None or role not in fault.roles:
            return None
        if fault.command is not None and command != fault.command:
            return None
        with self._lock:
            self._seen += 1
            return fault.harm if self._seen == fault.count else None

    def wait_for_the_end(self) -> None:
        """Until close() is called."""
        self._ended.wait()


class _Way:
    """One connection through the proxy."""

    def __init__(self, proxy: Lossy, client: socket.socket, node: socket.socket) -> None:
        self.proxy, self.client, self.node = proxy, client, node
        self.role = "client"
        for end in (client, node):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def requests(self) -> None:
        """From whoever speaks to the node, frame by frame."""
        with suppress(OSError, EOFError):
            while True:
                head = read_exact(self.client, REQUEST_HEAD.size)
                command, size = REQUEST_HEAD.unpack(head)
                if command == Command.EXT_HELLO:
                    body = read_exact(self.client, size)
                    self.role = ROLES[body[1]]
                    head, size = head + body, 0
                if not self._frame(command, head, size):
                    return
        with suppress(OSError):
            self.node.shutdown(socket.SHUT_WR)

    def replies(self) -> None:
        """From the node back, as it comes."""
        with suppress(OSError):
            while data := self.node.recv(1 << 16):
                self._pass(self.client, data, len(data))
            self.client.shutdown(socket.SHUT_WR)

    def _frame(self, command: int, head: bytes, size: int) -> bool:
        """Pass one frame on and do the harm that is due; whether there is more to do."""
        harm = self.proxy.strikes(command, self.role)
        if harm in (Harm.DEAF, Harm.SWALLOW, Harm.CUT_INSIDE):
            self.proxy.struck.set()
        if harm is Harm.DEAF:
            self.proxy.wait_for_the_end()
            return False
        if harm is Harm.SWALLOW:
            self._forget_all(size)
            return False
        whole = len(head) + size
        keep = whole // 2 if harm is Harm.CUT_INSIDE else whole
        self._pass(self.node, head[:keep], whole)
        left = keep - len(head)
        while left > 0:
            piece = read_exact(self.client, min(left, _BULK))
            self._pass(self.node, piece, whole)
            left -= len(piece)
        return self._after(harm)

    def _after(self, harm: Harm | None) -> bool:
        if harm is None:
            return True
        self.proxy.struck.set()
        how = socket.SHUT_WR if harm is Harm.HALF_CLOSE else socket.SHUT_RDWR
        with suppress(OSError):
            self.node.shutdown(how)
        if harm is not Harm.HALF_CLOSE:
            with suppress(OSError):
                self.client.shutdown(how)
        return False

    def _forget_all(self, size: int) -> None:
        with suppress(OSError):
            while self.client.recv(1 << 16):
                pass

    def _pass(self, sink: socket.socket, data: bytes, whole: int) -> None:
        """Send a piece of a frame of `whole` bytes, as late and as finely as the fault says."""
        fault = self.proxy.fault
        if self.role not in fault.roles:
            sink.sendall(data)
            return
        if fault.delay:
            time.sleep(fault.delay)
        if not fault.split:
            sink.sendall(data)
            return
        fine = len(data) if whole <= _SPLIT_WHOLE else min(len(data), _SPLIT_HEAD)
        for index in range(fine):
            sink.send(data[index : index + 1])
        sink.sendall(data[fine:])


@contextmanager
def lossy(target: str, fault: Fault) -> Iterator[Lossy]:
    """A proxy to the peer at `target` with a fault, closed at the end."""
    proxy = Lossy(target, fault)
    try:
        yield proxy
    finally:
        proxy.close()
