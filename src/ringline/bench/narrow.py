"""`ringline bench narrow`: a ring whose coordinator sits behind a narrow link. Linux, root.

The nodes are in one network namespace, the coordinator in another; between the nodes the rate is
the machine's. Each arm runs over the whole link and over the narrow one.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Any, Final

from ringline.bench.machine import describe_machine
from ringline.bench.narrow_side import FREE, LIMIT, Arm
from ringline.bench.netns import Link
from ringline.bench.report import Aim
from ringline.engine.local_nodes import LocalNodes
from ringline.errors import EngineError
from ringline.llama.gguf_file import check_model_file

__all__ = ["ARMS", "NarrowReport", "Plan", "run_narrow"]

ARMS: Final = (
    Arm("thin", "rendezvous", "all", 8, 32, 8.0),
    Arm("hidden states direct", "rendezvous", "none", 2, 2, 1.0),
    Arm("hub", "hub", "none", 2, 2, 1.0),
)
_LEAST: Final = 0.9


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        rate: of the narrow link, as tc writes it.
        streams: closed-loop streams.
        stages: nodes.
        arms: ways to run.
    """

    rate: str = "1mbit"
    streams: int = 8
    stages: int = 2
    arms: tuple[Arm, ...] = ARMS


@dataclass(frozen=True, slots=True)
class NarrowReport:
    """Tokens per second of each arm over the whole link and over the narrow one."""

    machine: dict[str, Any]
    plan: Plan
    arms: list[dict[str, Any]]

    def aims(self) -> list[Aim]:
        """What was aimed at: the thin arm keeps its pace."""
        return [
            Aim(f"{arm['name']}: narrow over whole link", _ratio(arm), _LEAST, at_most=False)
            for arm in self.arms
            if arm["name"] == ARMS[0].name
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON file has it."""
        return {
            "machine": self.machine,
            "rate": self.plan.rate,
            "streams": self.plan.streams,
            "stages": self.plan.stages,
            "arms": [{**arm, "ratio": _ratio(arm)} for arm in self.arms],
        }


def _ratio(arm: dict[str, Any]) -> float:
    return float(arm["narrow_tok_s"]) / float(arm["free_tok_s"])


def run_narrow(model: FilePath, plan: Plan, *, say: Callable[[str], None]) -> NarrowReport:
    """Measure all arms.

    Args:
        model: a GGUF file.
        plan: what.
        say: gets a line of talk now and then.

    Raises:
        CallerError: the model cannot be used. LibraryError: there can be no namespaces here.
        RinglineError: a node failed.
    """
    check_model_file(model)
    machine = describe_machine()
    with (
        Link() as link,
        LocalNodes(
            plan.stages,
            n_threads=1,
            inside=link.command(link.left),
            host=link.left_address,
            options=["--allow-peer", link.network, "--insecure"],
        ) as nodes,
    ):
        endpoints = ",".join(map(str, nodes.endpoints))
        return NarrowReport(machine, plan, _run_arms(link, model, endpoints, plan, say))


def _run_arms(
    link: Link, model: FilePath, endpoints: str, plan: Plan, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Let the coordinator measure, and narrow the link when it asks for it."""
    arms = json.dumps([arm.as_json() for arm in plan.arms])
    side = [sys.executable, "-m", "ringline.bench.narrow_side"]
    command = [*link.command(link.right), *side, str(model), endpoints, str(plan.streams), arms]
    found: list[dict[str, Any]] = []
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            for line in map(str.strip, process.stdout):
                if line in (LIMIT, FREE):
                    say(f"{plan.arms[len(found)].name}: link {line}")
                    link.limit(plan.rate if line == LIMIT else None)
                    process.stdin.write("done\n")
                    process.stdin.flush()
                    continue
                found.append(json.loads(line))
                if "error" in found[-1]:
                    raise EngineError(found[-1]["error"])
        finally:
            process.kill()
    if len(found) != len(plan.arms):
        raise EngineError(f"the coordinator behind the link ended with code {process.returncode}")
    return found
