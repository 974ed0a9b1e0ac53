"""A tiny client for the tests of the node: raw frames over a socket, nothing clever.

It is built on wire/ and net/ alone and shares no code with ringline's own client.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ringline.errors import NetworkError, RefusedError
from ringline.ggml.types import tables
from ringline.net.connect import connect
from ringline.net.endpoint import Endpoint
from ringline.net.stream import Bytes, Stream
from ringline.net.tls import PLAIN, TlsFiles
from ringline.wire.commands import Command
from ringline.wire.extension import ExtHello, ExtHelloReply, PeerBarrier, Ping, Role
from ringline.wire.frames import ERROR_HEADER, ERROR_SIZE, REPLY_HEADER, REQUEST_HEADER
from ringline.wire.graph import GraphBody
from ringline.wire.messages import (
    AllocBuffer,
    BufferGetBase,
    GetTensor,
    GraphRecompute,
    Hello,
    Request,
    SetTensor,
)
from ringline.wire.tensor import RECORD, Tensor
from tests.peers.processes import Peer, patience

F32 = 0
COMPUTE_FLAG = 16
#: for an answer, or for what a node does by itself; most take milliseconds.
SECONDS = 30.0


def op(name: str) -> int:
    """The number of an op."""
    return tables().op_names.index(name)


class Client:
    """One connection. `greeting` is the reply to EXT_HELLO, None for a stock client."""

    def __init__(self, endpoint: str, tls: TlsFiles = PLAIN) -> None:
        seconds = patience(SECONDS)
        self.stream: Stream = connect(
            Endpoint.parse(endpoint), timeout=seconds, silence=seconds, tls=tls
        )
        self.greeting: ExtHelloReply | None = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @classmethod
    def stock(cls, endpoint: str, tls: TlsFiles = PLAIN) -> Client:
        """As llama.cpp connects."""
        client = cls(endpoint, tls)
        client.hello = Hello.Reply.unpack(client.call(Hello()))  # type: ignore[attr-defined]
        return client

    @classmethod
    def extended(
        cls,
        endpoint: str,
        role: Role = Role.CLIENT,
        *,
        session: int = 0,
        secret: bytes = bytes(16),
        level: int = 3,
        tls: TlsFiles = PLAIN,
    ) -> Client:
        """As ringline connects."""
        client = cls.stock(endpoint, tls)
        try:
            hello = ExtHello(level, role, session=session, secret=secret)
            client.greeting = ExtHelloReply.unpack(client.call(hello))
        except BaseException:
            client.close()
            raise
        return client

    def attach(self, endpoint: str) -> Client:
        """A further connection to this one's session."""
        assert self.greeting is not None
        known = self.greeting
        return Client.extended(endpoint, Role.ATTACH, session=known.session, secret=known.secret)

    def send(self, command: int, *parts: Bytes) -> None:
        """One request, not waiting for a reply."""
        size = sum(len(part) for part in parts)
        self.stream.send([REQUEST_HEADER.pack(command, size), *parts])

    def post(self, request: Request, data: Bytes = b"") -> None:
        """A request without a reply."""
        self.send(request.COMMAND, request.pack(), data)

    def call(self, request: Request) -> bytes:
        """A request and its reply; raises RefusedError where that is an error frame."""
        self.post(request)
        return self.reply()

    def reply(self) -> bytes:
        """The next reply."""
        (size,) = REPLY_HEADER.unpack(self.stream.read(REPLY_HEADER.size))
        if size == ERROR_SIZE:
            code, length = ERROR_HEADER.unpack(self.stream.read(ERROR_HEADER.size))
            raise RefusedError(self.stream.read(length).decode(), code=code)
        body = bytearray(size)
        self.stream.read_into(memoryview(body))
        return bytes(body)

    def ping(self) -> None:
        """A round trip; brings out the error of a command without reply."""
        assert Ping.Reply.unpack(self.call(Ping())).value == 1

    def barrier(self) -> None:
        """What a peer ends its writes with."""
        assert PeerBarrier.Reply.unpack(self.call(PeerBarrier())).value == 1

    def closed(self) -> bool:
        """Whether the node closes this connection, and sends nothing before."""
        try:
            rest = self.stream.read(1)
        except NetworkError as error:
            return "closed" in error.cause or "lost" in error.cause
        raise AssertionError(f"the node sent {rest!r}")

    def close(self) -> None:
        """Leave."""
        self.stream.close()

    def alloc(self, size: int, *, device: int = 0) -> Block:
        """Make a buffer on a device."""
        made = AllocBuffer.Reply.unpack(self.call(AllocBuffer(device, size)))
        assert made.handle
        base = BufferGetBase.Reply.unpack(self.call(BufferGetBase(made.handle))).value
        return Block(made.handle, base, made.size)

    def write(self, tensor: Tensor, data: Bytes, offset: int = 0) -> None:
        """SET_TENSOR."""
        self.post(SetTensor(tensor.pack(), 0, offset), data)

    def read(self, tensor: Tensor, size: int, offset: int = 0) -> bytes:
        """GET_TENSOR."""
        return self.call(GetTensor(tensor.pack(), offset, size))

    def compute(self, nodes: list[int], tensors: list[Tensor]) -> None:
        """GRAPH_COMPUTE on device 0."""
        self.send(Command.GRAPH_COMPUTE, graph_body(nodes, tensors).pack())

    def recompute(self) -> None:
        """GRAPH_RECOMPUTE on device 0."""
        self.post(GraphRecompute(0))


@dataclass(frozen=True)
class Block:
    """A buffer as a client knows it."""

    handle: int
    base: int
    size: int

    def vector(self, number: int, n: int, *, at: int = 0, **fields: object) -> Tensor:
        """A vector of `n` f32 at byte `at`; `number` is its id."""
        whole = 4 * n
        values = {"op": 0, "flags": COMPUTE_FLAG, "name": f"t{number}", **fields}
        return Tensor(
            id=number,
            type=F32,
            buffer=self.handle,
            ne=(n, 1, 1, 1),
            nb=(4, whole, whole, whole),
            data=self.base + at,
            **values,  # type: ignore[arg-type]
        )


def graph_body(nodes: list[int], tensors: list[Tensor], device: int = 0) -> GraphBody:
    """A graph as a request's body."""
    records = np.frombuffer(b"".join(t.pack() for t in tensors), RECORD)
    return GraphBody(device, np.array(nodes, np.uint64), records)


def addition(block: Block, n: int = 8) -> list[Tensor]:
    """Tensors 1 and 2 and their sum 3, one after the other in a block."""
    left, right = block.vector(1, n), block.vector(2, n, at=4 * n)
    total = block.vector(3, n, at=8 * n, op=op("ADD"), src=(1, 2, *(0,) * 8))
    return [left, right, total]


def floats(*values: float) -> bytes:
    """f32 values as bytes."""
    return np.array(values, np.float32).tobytes()


def children(pid: int) -> set[int]:
    """The pids of a process's children that have not ended."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return {child for child in map(int, text.split()) if _state(child) not in ("Z", "X", None)}


def _state(pid: int) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None


def wait_for(what: str, condition: Callable[[], object], seconds: float = SECONDS) -> None:
    """Wait until a condition holds; fails naming it."""
    deadline = time.monotonic() + patience(seconds)
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for: {what}"
        time.sleep(0.01)


def settle(node: Peer) -> None:
    """Return when the gatekeeper has logged and counted what it has done so far.

    It hands a connection over first and logs that then; but it does one thing after the other, and
    the answer to a new HELLO comes after all of it.
    """
    Client.stock(node.endpoint).close()


@contextmanager
def session_of(node: Peer) -> Iterator[tuple[Client, int]]:
    """An extended client and the pid of its session process."""
    with Client.extended(node.endpoint) as client:
        assert client.greeting is not None
        # With the end of the line: what was written may be there in part.
        begins = re.compile(rf"session {client.greeting.session:08x} begins.*pid (\d+)\n")
        wait_for("the session in the log", lambda: begins.search(node.log()))
        found = begins.search(node.log())
        assert found is not None
        yield client, int(found[1])
