"""`ringline bench link`: what TLS costs on the way between a client and a node on this machine.

Two nodes, one with TLS and certificates made for the occasion, one without. In each round both are
asked the same: a PING and back, many times; a write and a read of one large tensor, each followed
by a PING that proves it done. Rates are megabytes (10^6 bytes) a second.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringline.bench.cpu import tree_seconds
from ringline.bench.machine import describe_machine
from ringline.bench.report import Series, in_turns
from ringline.client.counters import Counters
from ringline.client.node import Node
from ringline.engine.local_nodes import LocalNodes
from ringline.errors import PeerError
from ringline.net.certificates import make_authority, make_certificate
from ringline.net.tls import PLAIN, TlsFiles
from ringline.wire.commands import Command
from ringline.wire.extension import Ping
from ringline.wire.messages import GetTensor, Result, SetTensor
from ringline.wire.tensor import Tensor

__all__ = ["FIGURES", "FULL", "QUICK", "LinkReport", "Plan", "run_link"]

_HOST: Final = "127.0.0.1"
_ARMS: Final = ("plain", "tls")
#: round trip; rates; processor time of both ends together for one write or read.
FIGURES: Final = ("ping_us", "set_mb_s", "get_mb_s", "set_cpu_ms", "get_cpu_ms")


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        rounds: of both arms.
        size: bytes of the tensor.
        repeats: writes, and reads, of a round.
        pings: of a round.
    """

    rounds: int = 7
    size: int = 64 << 20
    repeats: int = 4
    pings: int = 500


FULL: Final = Plan()
QUICK: Final = Plan(rounds=1, size=8 << 20, pings=20)


@dataclass(frozen=True, slots=True)
class LinkReport:
    """Figures of both arms, see FIGURES; ratios are TLS over plain."""

    machine: dict[str, Any]
    plan: Plan
    plain: Series
    tls: Series

    def ratio(self, figure: str) -> float:
        """TLS over plain, the median of the rounds' own ratios."""
        return self.tls.over(self.plain, figure) if self._measured(figure) else math.nan

    def _measured(self, figure: str) -> bool:
        """Processor time is counted in ticks: a short run may have used none."""
        return all(values[figure] for values in self.plain.rounds)

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON file has it."""
        return {
            "machine": self.machine,
            "bytes": self.plan.size,
            "rounds": self.plan.rounds,
            "arms": [self.plain.as_json(), self.tls.as_json()],
            "ratios": {figure: self.ratio(figure) for figure in FIGURES if self._measured(figure)},
        }


def run_link(plan: Plan, *, say: Callable[[str], None]) -> LinkReport:
    """Measure both arms.

    Args:
        plan: how much.
        say: gets a line of talk now and then.

    Raises:
        RinglineError: a node cannot be started, has no room, or failed.
    """
    machine = describe_machine()
    rounds: dict[str, list[dict[str, float]]] = {arm: [] for arm in _ARMS}
    with ExitStack() as stack:
        files = _make_files(Path(stack.enter_context(tempfile.TemporaryDirectory())))
        arms = {
            "plain": _Arm(stack, PLAIN, plan),
            "tls": _Arm(stack, files, plan),
        }
        for arm in arms.values():
            arm.measure()  # what happens once: memory of the node, buffers of the kernel
        for arm_name in in_turns(_ARMS, plan.rounds):
            rounds[arm_name].append(arms[arm_name].measure())
            say(f"{arm_name}: {rounds[arm_name][-1]['set_mb_s']:,.0f} MB/s written")
    plain, tls = (Series(arm, arm, tuple(rounds[arm])) for arm in _ARMS)
    return LinkReport(machine, plan, plain, tls)


def _make_files(folder: Path) -> TlsFiles:
    make_authority(folder, name="ringline bench", days=1)
    made = make_certificate(folder, "bench", [_HOST], days=1)
    return TlsFiles(str(made.certificate), str(made.key), str(folder / "ca.pem"))


class _Arm:
    """A node, our connection to it, and a tensor there."""

    def __init__(self, stack: ExitStack, tls: TlsFiles, plan: Plan) -> None:
        options = ["--tls-cert", tls.cert, "--tls-key", tls.key, "--tls-ca", tls.ca] if tls else []
        nodes = stack.enter_context(LocalNodes(1, n_threads=1, options=options))
        self._plan = plan
        self._node = Node(nodes.endpoints[0], Counters(), tls)
        stack.callback(self._node.close)
        made = self._node.alloc_buffer(0, plan.size)
        if not made.handle:
            raise PeerError(f"no room for {plan.size:,} bytes", peer=str(nodes.endpoints[0]))
        base, whole = self._node.buffer_base(made.handle), (4, *(plan.size,) * 3)
        shape = (plan.size // 4, 1, 1, 1)
        record = Tensor(id=1, type=0, buffer=made.handle, ne=shape, nb=whole, data=base).pack()
        self._set = SetTensor(record, 0, 0).pack()
        self._get = GetTensor(record, 0, plan.size).pack()
        self._data = memoryview(bytearray(plan.size))

    def measure(self) -> dict[str, float]:
        """One round: the median of the PINGs, and the rates."""
        trips = [_seconds(self._ping) for _ in range(self._plan.pings)]
        written, write_cpu = self._times(self._write)
        read, read_cpu = self._times(self._read)
        size = self._plan.size / 1e6
        return {
            "ping_us": statistics.median(trips) * 1e6,
            "set_mb_s": size / written,
            "get_mb_s": size / read,
            "set_cpu_ms": write_cpu * 1e3,
            "get_cpu_ms": read_cpu * 1e3,
        }

    def _times(self, action: Callable[[], None]) -> tuple[float, float]:
        """Seconds of one of several in a row, and the processor time of both ends for it."""
        before = tree_seconds(os.getpid())  # the nodes are below us, and the other one is idle
        seconds = sum(_seconds(action) for _ in range(self._plan.repeats)) / self._plan.repeats
        return seconds, (tree_seconds(os.getpid()) - before) / self._plan.repeats

    def _ping(self) -> None:
        self._node.main.call(Ping.COMMAND, size=Result.LAYOUT.size)

    def _read(self) -> None:
        self._node.main.read(Command.GET_TENSOR, self._get, target=self._data)

    def _write(self) -> None:
        self._node.main.post(Command.SET_TENSOR, self._set, self._data)
        self._ping()


def _seconds(action: Callable[[], None]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began
