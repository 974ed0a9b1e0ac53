"""Malformed messages of every command, from every role: cut short, too long, lies, nonsense.

Each is sent on a connection of its own kind, and then a PING: there must be an answer, an error or
the end of the connection, within a time, and the node must live. Samples are built for the session
that they are sent to, so that what is not malformed in them is right.
"""

from __future__ import annotations

import struct
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

from ringline.errors import DeadlineError, NetworkError, RefusedError
from ringline.wire.commands import RULES, Command
from ringline.wire.extension import (
    COUNT,
    LENGTH,
    CopyTensorTo,
    PeerData,
    ProbePeer,
    RecvTensor,
    Role,
    SendTensor,
    pack_get_tensors,
)
from ringline.wire.frames import REQUEST_HEADER
from ringline.wire.messages import (
    BufferClear,
    CopyTensor,
    GetTensor,
    MemsetTensor,
    SetTensor,
    SetTensorHash,
)
from ringline.wire.sampling import KeepRows, ReadKept, VocabularyPart
from ringline.wire.tensor import NO_TENSOR, TENSOR_SIZE
from ringline.wire.thin import Encoder
from tests.fuzz.corpus import record_frames
from tests.fuzz.nodes import FUZZ_NODE
from tests.fuzz.recording import Said
from tests.fuzz.session import PATIENCE
from tests.peers.processes import Peer, patience, ringline_node
from tests.server_client import Block, Client, addition, floats, graph_body

#: what a message may announce instead of its size.
LIES: Final = (0, 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
WORDS: Final = (0, 1, 0x7F, 0x7FFF_FFFF, 0x8000_0000, 0xFFFF_FFFF)
#: these may wait for somebody else for as long as their client lets them.
MAY_WAIT: Final = frozenset({Command.RECV_TENSOR, Command.STEP})
#: bytes at the end that name another node: a name that means nothing would be asked of a resolver.
ENDPOINT: Final = b"127.0.0.1:1"
DIALLING: Final = frozenset({Command.COPY_TENSOR_TO, Command.SEND_TENSOR, Command.PROBE_PEER})


@dataclass
class FrameReport:
    """What became of the messages: by outcome, and what must not be."""

    ends: Counter[str] = field(default_factory=Counter)
    commands: set[int] = field(default_factory=set)
    seconds: float = 0.0
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        ends = ", ".join(f"{count} {end}" for end, count in sorted(self.ends.items()))
        head = f"{sum(self.ends.values())} malformed messages of {len(self.commands)} commands"
        faults = [f"FAULT: {fault}" for fault in self.faults] or ["no fault"]
        return "\n".join([f"{head} in {self.seconds:.0f} s: {ends}", *faults])


@dataclass(frozen=True, slots=True)
class Message:
    """Bytes on the wire that are no proper request, and what is wrong with them."""

    command: int
    wire: bytes
    what: str


def samples(block: Block, session: int, said: Sequence[Said]) -> dict[Command, bytes]:
    """A proper body of every command, for the session that owns the block."""
    left, right, total = (tensor.pack() for tensor in addition(block))
    vector, ticket = block.vector(1, 8).pack(), bytes(range(16))
    handle = struct.pack("<Q", block.handle)
    graph = bytes(graph_body([3], addition(block)).pack())
    write = SetTensor(vector, 0, 0).pack() + floats(*range(8))
    asked = struct.pack("<I", 0) + total + left + right + NO_TENSOR * 8
    where = ENDPOINT.decode()
    step = Encoder().encode([(Command.SET_TENSOR, write), (Command.GRAPH_COMPUTE, graph)])
    bodies = {entry.command: entry.body for entry in said if len(entry.body) < 1 << 16}
    rows = vector + bodies[Command.SET_ROWS][TENSOR_SIZE:]
    return {
        **{command: bytes(rule.least) for command, rule in RULES.items()},
        **bodies,
        Command.ALLOC_BUFFER: struct.pack("<IQ", 0, 4096),
        Command.BUFFER_GET_BASE: handle,
        Command.FREE_BUFFER: handle,
        Command.BUFFER_CLEAR: BufferClear(block.handle, 1).pack(),
        Command.SET_TENSOR: write,
        Command.SET_TENSOR_HASH: SetTensorHash(vector, 0, 1).pack(),
        Command.GET_TENSOR: GetTensor(vector, 0, 32).pack(),
        Command.COPY_TENSOR: CopyTensor(left, right).pack(),
        Command.GRAPH_COMPUTE: graph,
        Command.INIT_TENSOR: vector,
        Command.GET_ALLOC_SIZE: asked,
        Command.SUPPORTS_OP: asked,
        Command.MEMSET_TENSOR: MemsetTensor(vector, 0, 32, 1).pack(),
        Command.GET_TENSORS: pack_get_tensors([GetTensor(vector, 0, 32)] * 2),
        Command.SET_TENSORS: COUNT.pack(2) + 2 * (LENGTH.pack(len(write)) + write),
        Command.COPY_TENSOR_TO: CopyTensorTo(left, right, 32, where).pack(),
        Command.SEND_TENSOR: SendTensor(vector, 0, 32, ticket, session, where).pack(),
        Command.RECV_TENSOR: RecvTensor(vector, 0, 32, ticket, 1).pack(),
        Command.PEER_DATA: PeerData(ticket, 32).pack() + bytes(32),
        Command.PROBE_PEER: ProbePeer(session, 64, where).pack(),
        Command.KEEP_ROWS: KeepRows(vector, 0, 32, 4).pack(),
        Command.READ_KEPT: ReadKept([0]).pack(),
        Command.VOCABULARY: VocabularyPart(1, bodies.get(Command.VOCABULARY, b"")[1:]).pack(),
        Command.SET_ROWS: rows,
        Command.STEP: step,
    }


def malformed(command: Command, body: bytes, luck: Random, many: int) -> Iterator[Message]:
    """A command's ways to be wrong: those of its size all, of its contents `many`."""
    for size in {0, 1, len(body) // 2, max(0, len(body) - 1), max(0, len(body) - 4)} - {len(body)}:
        yield _message(command, body[:size], f"cut to {size} of {len(body)} bytes")
    for more in (1, 8, 4096):
        yield _message(command, body + bytes(more), f"{more} bytes more")
    for lie in {*LIES, len(body) + 1, max(0, len(body) - 1), RULES[command].most + 1}:
        wire = REQUEST_HEADER.pack(command, lie % (1 << 64)) + body
        yield Message(command, wire, f"{lie} bytes announced, {len(body)} sent")
    fixed = len(body) - len(ENDPOINT) if command in DIALLING else len(body)
    for _ in range(many if fixed else 0):
        raw = bytearray(body)
        at = luck.randrange(fixed)
        wide = luck.choice((1, 4, 4, 8))
        piece = struct.pack("<Q", luck.choice([*WORDS, luck.randrange(1 << 32)]))[:wide]
        raw[at : at + wide] = piece[: fixed - at]
        yield _message(command, bytes(raw), f"{piece.hex()} at {at}")
    if command not in DIALLING:
        yield _message(command, luck.randbytes(len(body)), "random bytes")


def unknown(luck: Random) -> Iterator[Message]:
    """Commands that there are not."""
    for number in sorted(set(range(256)) - {int(command) for command in Command}):
        body = luck.randbytes(luck.choice((0, 4, 300)))
        yield Message(number, REQUEST_HEADER.pack(number, len(body)) + body, "unknown command")


def _message(command: Command, body: bytes, what: str) -> Message:
    return Message(command, REQUEST_HEADER.pack(command, len(body)) + body, what)


def run_frames(seed: int, many: int = 40, seconds: float = float("inf")) -> FrameReport:
    """Send them all to a node of their own, in every role, until the time is over."""
    report, luck = FrameReport(), Random(f"frames {seed}")
    with ringline_node(*FUZZ_NODE) as node, ringline_node(*FUZZ_NODE) as other:
        said = record_frames([node.endpoint, other.endpoint])
        begin = time.monotonic()
        sender = _Sender(node, said, report)
        for role in ("client", "peer", "stock"):
            for command in Command:
                body = sender.sample(command)
                some = many if role == "client" else many // 4
                for message in malformed(command, body, luck, some):
                    if time.monotonic() - begin < seconds and not report.faults:
                        sender.send(message, role)
            for message in unknown(luck):
                if time.monotonic() - begin < seconds and not report.faults:
                    sender.send(message, role)
        sender.close()
        report.seconds = time.monotonic() - begin
        crashes = node.log_path.read_text(errors="replace").count('"session_crash"')
        if crashes:
            report.faults.append(f"{crashes} sessions died of malformed messages")
    return report


class _Sender:
    """A session whose connections of all roles are opened as they are needed."""

    def __init__(self, node: Peer, said: Sequence[Said], report: FrameReport) -> None:
        self._node, self._said, self._report = node, said, report
        self._open: dict[str, Client] = {}
        self._samples: dict[Command, bytes] = {}
        self._holder = self._hold()

    def close(self) -> None:
        """Leave with all connections."""
        for client in (*self._open.values(), self._holder):
            client.close()
        self._open.clear()

    def sample(self, command: Command) -> bytes:
        """A proper body, for the session as it is now."""
        return self._samples[command]

    def send(self, message: Message, role: str) -> None:
        """Send one, and see that something sensible comes of it."""
        owed = message.command not in MAY_WAIT and not self._incomplete(message)
        try:
            client = self._connection(role)
            if role != "stock":
                client.stream.silence = patience(PATIENCE if owed else 2.0)
            client.stream.send([message.wire])
            end = self._answer(client, role)
        except DeadlineError:
            end = "waits"
            self._drop(role)
            if owed:
                self._fault(message, role, "no answer")
        except NetworkError:
            end = "closed"
            self._drop(role)
        self._report.ends[end] += 1
        self._report.commands.add(message.command)
        if not self._node.alive:
            self._fault(message, role, "the gatekeeper died")

    def _answer(self, client: Client, role: str) -> str:
        if role == "stock":  # it has no PING, and no errors: silence or the end are all it gets
            client.stream.silence = 0.05
            with suppress(DeadlineError):
                client.stream.read(1)
            self._drop(role)
            return "taken"
        for _ in range(2):  # an error may come for the message and another one for the PING
            try:
                client.ping()
            except RefusedError:
                with suppress(RefusedError, AssertionError):
                    client.ping()
                return "refused"
            except AssertionError:  # the reply of the message itself
                self._drop(role)
                return "answered"
        return "taken"

    def _incomplete(self, message: Message) -> bool:
        """Whether the node rightly waits for more of it."""
        number, size = REQUEST_HEADER.unpack_from(message.wire)
        return size > len(message.wire) - REQUEST_HEADER.size and number in tuple(Command)

    def _connection(self, role: str) -> Client:
        if role not in self._open:
            self._open[role] = self._connect(role)
        return self._open[role]

    def _connect(self, role: str) -> Client:
        endpoint, known = self._node.endpoint, self._holder.greeting
        assert known is not None
        if role == "stock":
            return Client.stock(endpoint)
        try:
            if role == "peer":
                return Client.extended(endpoint, Role.PEER, session=known.session, level=5)
            secret = known.secret
            return Client.extended(
                endpoint, Role.ATTACH, session=known.session, secret=secret, level=5
            )
        except (NetworkError, RefusedError):
            self._holder.close()
            self._holder = self._hold()
            return self._connect(role)

    def _hold(self) -> Client:
        client = Client.extended(self._node.endpoint, level=5)
        assert client.greeting is not None
        self._samples = samples(client.alloc(4096), client.greeting.session, self._said)
        return client

    def _drop(self, role: str) -> None:
        client = self._open.pop(role, None)
        if client is not None:
            client.close()

    def _fault(self, message: Message, role: str, what: str) -> None:
        name = Command(message.command).name if message.command in tuple(Command) else "?"
        self._report.faults.append(
            f"{what}: {name} ({message.command}) from a {role}, {message.what}"
        )
