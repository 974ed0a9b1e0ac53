"""A session on a real node in which cases are played, and what becomes of each.

The node logs as JSON: from its log come the pid of a session, and how and in what it ended.
"""

from __future__ import annotations

import json
import os
import re
import signal
import time
import zlib
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import numpy as np

from ringline.errors import DeadlineError, NetworkError, ProtocolError, RefusedError
from ringline.wire.commands import Command
from ringline.wire.graph import GraphBody
from ringline.wire.messages import FreeBuffer, SetTensor
from ringline.wire.tensor import Tensor
from ringline.wire.thin import Encoder
from ringline.wire.thin.steps import DEFLATED, DIGEST, DIGEST_SIZE
from tests.fuzz.cases import Case, Kind, patched
from tests.fuzz.corpus import SHIFT, SLACK, Scene, Write
from tests.peers.processes import Peer, patience
from tests.server_client import Block, Client

#: after this a computation is taken to be without end.
PATIENCE: Final = 20.0
I8: Final = 24
#: what differs from case to case in a refusal.
_DETAILS = re.compile(r"'.*?'|0x[0-9a-f]+|\d+|\[.*?\]")
_SUBJECT = re.compile(
    r"^(GRAPH_COMPUTE|GRAPH_RECOMPUTE): (tensor '.*' \(id 0x[0-9a-f]+\): )?", re.S
)


class End(StrEnum):
    """What became of a case."""

    COMPUTED = "computed"
    REFUSED = "refused"
    CRASHED = "crashed"
    SLOW = "slow"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a case, and why.

    Attributes:
        why: the rule of a refusal; of a crash the signal.
        said: what ggml printed before it died, else the node's sentence.
        last: of a crash: what the log says that the session was doing.
    """

    end: End
    why: str = ""
    said: str = ""
    last: str = ""


class NodeLog:
    """The events of a node's log, read as they come."""

    def __init__(self, path: Path) -> None:
        self._file = path.open(encoding="utf-8", errors="replace")
        self._began: dict[str, int] = {}
        self._ended: dict[str, dict[str, Any]] = {}
        self._printed: list[str] = []
        self._rest = ""

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def read(self) -> None:
        """Take in what is new."""
        *lines, self._rest = (self._rest + self._file.read()).split("\n")
        for line in lines:
            try:
                event = json.loads(line)
                kind = event["event"]
            except (ValueError, KeyError, TypeError):
                self._printed.append(line)
                continue
            if kind == "session_begin":
                self._began[event["session"]] = event["pid"]
            elif kind in ("session_end", "session_crash"):
                self._ended[event["session"]] = event

    def pid(self, session: str) -> int:
        """The process of a session."""
        return int(self._wait(self._began, session))

    def end(self, session: str) -> tuple[dict[str, Any], str]:
        """The event of a session's end, and what was printed since the last one."""
        event: dict[str, Any] = self._wait(self._ended, session)
        printed, self._printed = "\n".join(self._printed), []
        return event, printed

    def _wait(self, known: dict[str, Any], session: str) -> Any:
        deadline = time.monotonic() + patience(20)
        while session not in known:
            assert time.monotonic() < deadline, f"the log says nothing of session {session}"
            self.read()
            if session not in known:
                time.sleep(0.002)
        return known.pop(session)


def _inflated(step: bytes) -> bytes:
    """The same STEP without compression, which would refuse nearly every change itself."""
    if not step[0] & DEFLATED:
        return step
    start = at = 1 + (DIGEST_SIZE if step[0] & DIGEST else 0)
    while step[at] & 0x80:  # the length of what is inflated, a varint
        at += 1
    head = bytes([step[0] & ~DEFLATED]) + step[1:start]
    return head + zlib.decompress(step[at + 1 :], wbits=-15)


class FuzzSession:
    """One session with the buffers and weights of a scene; made again when it is gone."""

    def __init__(self, node: Peer, log: NodeLog) -> None:
        self._node, self._log = node, log
        self._client: Client | None = None
        self._scene: Scene | None = None
        self._blocks: list[Block] = []
        self.restarts = 0

    def close(self) -> None:
        """Leave."""
        if self._client is not None:
            self._client.close()
        self._client = None

    def play(self, case: Case, scene: Scene) -> Outcome:
        """Send a case and see what becomes of it."""
        if self._client is None or self._scene is not scene:
            self._open(scene)
        client = self._client
        assert client is not None
        try:
            self._send(client, case)
            client.ping()
        except RefusedError as error:
            return self._refused(str(error), case)
        except NetworkError as error:
            return self._lost(error)
        self._settle(case)
        return Outcome(End.COMPUTED)

    def _settle(self, case: Case) -> None:
        """The next case finds the scene as it was recorded, but for what graphs have computed."""
        if case.free or case.kind is Kind.DATA:
            self.close()

    def _open(self, scene: Scene) -> None:
        self.close()
        self.restarts += 1
        self._client = client = Client.extended(self._node.endpoint, level=5)
        client.stream.silence = patience(PATIENCE)
        self._scene = scene
        self._blocks = [client.alloc(size) for size in scene.sizes]
        for write in scene.weights:
            self._write(client, write)

    def _send(self, client: Client, case: Case) -> None:
        if case.kind is Kind.STEP:
            self._send_step(client, case)
            return
        for write in case.writes:
            self._write(client, write)
        client.send(Command.GRAPH_COMPUTE, self._translate(case.body))
        if case.free:
            client.post(FreeBuffer(self._blocks[case.free - 1].handle))
        if case.again:
            client.recompute()

    def _send_step(self, client: Client, case: Case) -> None:
        """All of it as the codec of level 5 has it, and what is changed in that."""
        commands = [
            (Command.SET_TENSOR, SetTensor(self._place(write).pack(), 0, 0).pack() + write.data)
            for write in case.writes
        ]
        commands.append((Command.GRAPH_COMPUTE, self._translate(case.body)))
        client.send(Command.STEP, patched(_inflated(Encoder().encode(commands)), case.patches))

    def _write(self, client: Client, write: Write) -> None:
        client.write(self._place(write), write.data)

    def _place(self, write: Write) -> Tensor:
        """Where a write goes, as a tensor of bytes."""
        block, count = self._blocks[write.buffer - 1], len(write.data)
        return Tensor(
            id=1,
            type=I8,
            buffer=block.handle,
            ne=(count, 1, 1, 1),
            nb=(1, count, count, count),
            data=block.base + write.offset,
        )

    def _translate(self, raw: bytes) -> bytes:
        """The words of the scene in those of this session; bytes that are no graph stay."""
        try:
            body = GraphBody.unpack(raw)
        except ProtocolError:
            return raw
        tensors = body.tensors.copy()
        numbers, data = body.tensors["buffer"], body.tensors["data"].astype(np.uint64)
        nearest = (data + np.uint64(SLACK)) >> np.uint64(SHIFT)
        for number, block in enumerate(self._blocks, 1):
            tensors["buffer"][numbers == number] = block.handle
            here = nearest == number
            base = np.uint64((block.base - (number << SHIFT)) % (1 << 64))
            tensors["data"][here] = data[here] + base
        return bytes(GraphBody(body.device, body.nodes, tensors).pack())

    def _refused(self, sentence: str, case: Case) -> Outcome:
        """An error frame. Bytes that are no request end the connection too."""
        assert self._client is not None
        try:
            self._client.ping()
        except NetworkError as error:
            outcome = self._lost(error)
            if outcome.end is not End.REFUSED:
                return outcome
        self._settle(case)
        rule = _DETAILS.sub("#", _SUBJECT.sub("", sentence))
        return Outcome(End.REFUSED, rule[:120], sentence)

    def _lost(self, error: NetworkError) -> Outcome:
        """The connection is gone, or nothing has come for long: look into the log."""
        client = self._client
        assert client is not None
        assert client.greeting is not None
        number = f"{client.greeting.session:08x}"
        slow = isinstance(error, DeadlineError)
        if slow:
            os.kill(self._log.pid(number), signal.SIGKILL)
        self.close()
        event, printed = self._log.end(number)
        if slow:
            return Outcome(End.SLOW, "no answer", str(error))
        if event["event"] == "session_end":
            return Outcome(End.REFUSED, "closed without a word", printed)
        said = [line for line in printed.splitlines() if "GGML_ASSERT" in line or "abort" in line]
        return Outcome(End.CRASHED, event["cause"], " ".join(said), event["last_command"])
