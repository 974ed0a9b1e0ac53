"""A session of a node in this process, of extension level 5: sockets, threads, a device.

Its connections are those of a session process, handed over by a socket pair.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ringline.ggml.devices import find_devices
from ringline.llama.vocabulary import vocabulary_header
from ringline.net.endpoint import Endpoint
from ringline.net.stream import Stream
from ringline.server.board import Board
from ringline.server.buffers import Registry
from ringline.server.connection import Connection
from ringline.server.context import Context, Node, Session
from ringline.server.execution import LockFiles
from ringline.server.handover import Handover
from ringline.server.inbox import Inbox
from ringline.server.options import ServeOptions
from ringline.server.peers import Peers
from ringline.server.policy import PeerPolicy
from ringline.server.senders import Senders
from ringline.wire.extension import Role
from ringline.wire.messages import SetTensor
from ringline.wire.sampling import (
    KeepRows,
    Sample,
    Sampled,
    SamplerNew,
    VocabularyPart,
    unpack_sampled,
)
from ringline.wire.tensor import Tensor
from tests.peers.processes import patience
from tests.server_client import Client

LEVEL = 5


class SamplingClient(Client):
    """A raw client of a session in this process, and the words of level 5."""

    def __init__(self, sock: socket.socket) -> None:
        self.stream = Stream(sock, peer="the session", silence=patience(30))
        self.greeting = None

    def upload(self, rows: np.ndarray) -> Tensor:
        """Make a tensor of rows of logits, [n_rows, width] f32."""
        tensor = self.alloc(rows.nbytes).vector(1, rows.size)
        self.post(SetTensor(tensor.pack(), 0, 0), rows.tobytes())
        return tensor

    def keep(self, rows: np.ndarray) -> None:
        """Upload rows and keep them."""
        self.post(KeepRows(self.upload(rows).pack(), 0, rows.nbytes, rows.shape[1]))

    def sampler(self, number: int, text: str | bytes, tokens: list[int] | None = None) -> None:
        """SAMPLER_NEW."""
        raw = text if isinstance(text, bytes) else text.encode()
        self.post(SamplerNew(number, raw, tokens or []))

    def sample(
        self, number: int, pairs: list[tuple[int, int]], *, top: int = -1, width: int = 512
    ) -> list[Sampled]:
        """SAMPLE for pairs of row and sampler."""
        rows, samplers, tops = *map(list, zip(*pairs, strict=True)), [top] * len(pairs)
        raw = self.call(Sample(number, rows, samplers, tops))
        return list(unpack_sampled(raw, tops, width))

    def vocabulary(self, header: bytes, part: int = 1 << 16) -> None:
        """VOCABULARY, in parts; raises RefusedError where the last one is refused."""
        for start in range(0, len(header), part):
            last = start + part >= len(header)
            self.call(VocabularyPart(int(last), header[start : start + part]))


class LocalSession:
    """One session on the CPU; `connect` opens a connection of it."""

    def __init__(self) -> None:
        self._locks = LockFiles("CPU")
        options = ServeOptions(endpoint=Endpoint.parse("127.0.0.1:1"))
        policy = PeerPolicy.parse([], "127.0.0.1")
        self._peers = Peers(policy)
        self.session = Session(
            node=Node(options, (), (self._locks,), policy),
            devices=tuple(find_devices(["CPU"])),
            number=7,
            secret=os.urandom(16),
            client="test",
            board=Board(),
            registry=Registry(7),
            peers=self._peers,
            senders=Senders(self._peers),
            inbox=Inbox(),
        )
        self._visitors = 0

    @contextmanager
    def connect(self, *, level: int = LEVEL, role: Role = Role.CLIENT) -> Iterator[SamplingClient]:
        """A connection, as it is after EXT_HELLO; its thread has ended when the block is left."""
        ours, theirs = socket.socketpair()
        self._visitors += 1
        handover = Handover(role=role, level=level, client="test", session=7, secret="")
        self.context = Context(self.session, self._visitors)
        connection = Connection(theirs, handover, self.context)
        thread = threading.Thread(target=connection.serve, args=(None,), daemon=True)
        thread.start()
        try:
            with SamplingClient(ours) as client:
                yield client
        finally:
            thread.join(patience(30))
            assert not thread.is_alive(), "the connection's thread goes on"

    def close(self) -> None:
        """Free what a session process would leave to the kernel."""
        if self.session.vocabulary.model is not None:
            self.session.vocabulary.model.close()
        self._locks.close()


@contextmanager
def local_session() -> Iterator[LocalSession]:
    """A session while the block runs."""
    session = LocalSession()
    try:
        yield session
    finally:
        session.close()


@contextmanager
def vocabulary_session(model: Path) -> Iterator[LocalSession]:
    """A session that has the vocabulary of a model's file."""
    with local_session() as session:
        with session.connect() as client:
            client.vocabulary(vocabulary_header(model))
        yield session
