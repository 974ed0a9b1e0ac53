"""The arms of `ringline bench step`: which client runs over which servers.

Every arm's client is a process of its own that runs the same lines (tests/peers/workloads.py); the
servers stay up for the whole measurement. Two stages, one thread in each process.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringline.bench.peers import run_client
from ringline.bench.report import Ids, Series, first_difference, in_turns
from ringline.errors import PeerError
from ringline.net.endpoint import Endpoint

__all__ = ["ARMS", "COMMAND_ARMS", "Arm", "Arms", "Servers", "measure_commands"]

#: kind of server -> where they listen; both kinds have N_STAGES of them.
Servers = Mapping[str, Sequence[Endpoint]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run.

    Attributes:
        name: as in the JSON; label: for people.
        client: a module of tests/peers.
        servers: the kind of its servers, "" for none.
        options: more arguments of the client.
        direct: whether no hidden state may pass through the client.
    """

    name: str
    label: str
    client: str
    servers: str
    options: tuple[str, ...] = ()
    direct: bool = False


ARMS: Final = (
    Arm("local", "local CPU", "stock_client", ""),
    Arm("stock", "stock client, stock servers", "stock_client", "stock"),
    Arm("ringline_on_stock", "ringline, stock servers", "ringline_client", "stock"),
    Arm("stock_on_ringline", "stock client, ringline nodes", "stock_client", "ringline"),
    Arm("ringline_hub", "ringline, ringline nodes, hub", "ringline_client", "ringline", ("--hub",)),
    Arm(
        "ringline_direct",
        "ringline, ringline nodes, direct",
        "ringline_client",
        "ringline",
        direct=True,
    ),
)
COMMAND_ARMS: Final = (
    Arm("stock", "stock client, stock server", "micro", "stock"),
    Arm("ringline_on_stock", "ringline, stock server", "ringline_micro", "stock"),
    Arm("stock_on_ringline", "stock client, ringline node", "micro", "ringline"),
    Arm("ringline", "ringline, ringline node", "ringline_micro", "ringline"),
)


class Arms:
    """Runs the arms, round by round, and insists that all give the same tokens."""

    def __init__(self, checkout: Path, model: Path, servers: Servers) -> None:
        self._checkout = checkout
        self._model = model
        self._servers = servers
        self._ids: dict[str, tuple[Arm, Ids]] = {}  # by workload: who ran it first, and its tokens
        self._rounds: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in ARMS}
        self._paths: dict[str, Counter[str]] = {arm.name: Counter() for arm in ARMS}

    @property
    def series(self) -> list[Series]:
        """The figures so far: token_ms, prompt_ms."""
        return [
            Series(arm.name, arm.label, tuple(self._rounds[arm.name]), self._paths[arm.name])
            for arm in ARMS
        ]

    def run(self, arm: Arm, *, token: str, prompt: str) -> None:
        """Run one arm once.

        Args:
            arm: which.
            token: the workload whose steps count.
            prompt: the workload whose prompt counts; may be the same.

        Raises:
            PeerError: the client failed, its tokens are not those of the others, or its hidden
                states took another path than the arm is named after.
        """
        timings = {workload: self._timings(arm, workload) for workload in {token, prompt}}
        figures = {
            "token_ms": timings[token]["ms_per_token"],
            "prompt_ms": timings[prompt]["prompt_ms"],
        }
        self._rounds[arm.name].append(figures)

    def _timings(self, arm: Arm, workload: str) -> dict[str, float]:
        result = run_client(self._checkout, arm.client, self._arguments(arm, workload))
        self._compare(arm, workload, result["ids"])
        self._paths[arm.name].update(result.get("paths", {}))
        if arm.direct and self._paths[arm.name]["hub"]:
            raise PeerError(f"{arm.label!r}: a hidden state took the way through the coordinator")
        timings: dict[str, float] = result["timings"]
        return timings

    def _compare(self, arm: Arm, workload: str, ids: Ids) -> None:
        first, expected = self._ids.setdefault(workload, (arm, ids))
        difference = first_difference(expected, ids)
        if difference is not None:
            raise PeerError(
                f"the arms must give the same tokens, but {arm.label!r} differs from "
                f"{first.label!r} in workload {workload} at {difference}"
            )

    def _arguments(self, arm: Arm, workload: str) -> list[str]:
        arguments = [f"--model={self._model}", f"--workload={workload}", "--threads=1", "--time"]
        if arm.servers:
            endpoints = self._servers[arm.servers]
            arguments += [f"--rpc={','.join(map(str, endpoints))}"]
            arguments += [f"--tensor-split={','.join('1' for _ in endpoints)}"]
        return [*arguments, *arm.options]


def measure_commands(checkout: Path, servers: Servers, *, rounds: int, repeat: int) -> list[Series]:
    """Time single commands between each client and the first server of each kind.

    Returns:
        Figures get_us, set_us, bulk_gib: see tests/peers/micro.py.

    Raises:
        PeerError: a client failed.
    """
    found: dict[str, list[dict[str, float]]] = {arm.name: [] for arm in COMMAND_ARMS}
    for arm in in_turns(COMMAND_ARMS, rounds):
        arguments = [f"--rpc={servers[arm.servers][0]}", f"--repeat={repeat}"]
        figures: dict[str, Any] = run_client(checkout, arm.client, arguments)
        found[arm.name].append(figures)
    return [Series(arm.name, arm.label, tuple(found[arm.name])) for arm in COMMAND_ARMS]
