"""The demo's arms: one real model, five prompts, greedy, on this CPU and over three local nodes.

All arms must give the same text, and on the direct path no hidden state may pass through this
process: per step one COPY_TENSOR_TO for each boundary between nodes and one GET_TENSOR, the result.
The last arm is what people get without asking: no logits either, token ids out and token ids back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any, Final

from ringline.client.counters import PerStep
from ringline.client.edge import Path
from ringline.client.thin import Parts
from ringline.engine.local_nodes import LocalNodes
from ringline.engine.ring import Ring
from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN

__all__ = ["ARMS", "PROMPTS", "Arm", "DemoResult", "run_demo"]

PROMPTS: Final = (
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "Water boils at one hundred degrees because",
    "def fibonacci(n):",
    "Three things that every ring of computers needs are",
)
N_PREDICT: Final = 48
_CONTEXT: Final = 512


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run the model.

    Attributes:
        name: for people.
        stages: how many nodes.
        path: which a hidden state may take.
        parts: of extension level 5.
    """

    name: str
    stages: int
    path: Path | None
    parts: Parts = field(default_factory=Parts.none)

    @property
    def boundaries(self) -> int:
        """Edges between nodes."""
        return max(0, self.stages - 1)


ARMS: Final = (
    Arm("local CPU", 0, None),
    Arm("3 stages hub", 3, Path.HUB),
    Arm("3 stages direct", 3, Path.DIRECT),
    Arm("2 stages hub", 2, Path.HUB),
    Arm("2 stages direct", 2, Path.DIRECT),
    Arm("3 stages thin", 3, Path.RENDEZVOUS, Parts.all()),
)


@dataclass(frozen=True, slots=True)
class ArmResult:
    """What an arm gave: its texts, their md5, decode steps, and means per step."""

    arm: Arm
    texts: list[str]
    md5: str
    steps: int
    per_step: PerStep

    def as_json(self) -> dict[str, Any]:
        """The arm as the demo's JSON has it."""
        return {
            "name": self.arm.name,
            "stages": self.arm.stages,
            "path": self.arm.path or "local",
            "md5": self.md5,
            "steps": self.steps,
            "per_step": {
                "commands": self.per_step.commands,
                "bytes_out": self.per_step.bytes_out,
                "bytes_in": self.per_step.bytes_in,
            },
        }

    def complaint(self) -> str | None:
        """What is wrong with the path this arm took, or None."""
        copies = self.per_step.commands.get("COPY_TENSOR_TO", 0)
        wanted = self.arm.boundaries if self.arm.path is Path.DIRECT else 0
        if copies != wanted:
            return f"{self.arm.name}: {copies:.2f} COPY_TENSOR_TO a step, expected {wanted}"
        reads = self.per_step.commands.get("GET_TENSOR", 0)
        if self.arm.path is Path.DIRECT and reads != 1:
            return f"{self.arm.name}: {reads:.2f} GET_TENSOR a step, expected the result's alone"
        if self.arm.parts.sampling and reads:
            return f"{self.arm.name}: {reads:.2f} GET_TENSOR a step, expected none"
        return None


@dataclass(frozen=True, slots=True)
class DemoResult:
    """All arms."""

    model: str
    arms: list[ArmResult]

    @property
    def identical(self) -> bool:
        """Whether all arms gave the same text."""
        return len({arm.md5 for arm in self.arms}) == 1

    @property
    def complaints(self) -> list[str]:
        """What is wrong, one sentence each; empty when the demo has shown what it should."""
        wrong = [complaint for arm in self.arms if (complaint := arm.complaint())]
        return wrong if self.identical else ["the arms gave different texts", *wrong]

    def as_json(self) -> dict[str, Any]:
        """The demo's JSON."""
        return {
            "model": self.model,
            "arms": [arm.as_json() for arm in self.arms],
            "identical": self.identical,
        }


def run_demo(model: FilePath, *, say: Callable[[str], None]) -> DemoResult:
    """Run all arms over three nodes of our own.

    Args:
        model: a GGUF file.
        say: gets a line of talk when an arm begins.

    Raises:
        RinglineError: a node could not be started or failed.
    """
    say("starting three nodes on loopback")
    with LocalNodes(3, n_threads=1) as nodes:
        results = []
        for arm in ARMS:
            say(f"running {arm.name}")
            results.append(_run_arm(arm, model, nodes.endpoints[: arm.stages]))
    return DemoResult(model.name, results)


def _run_arm(arm: Arm, model: FilePath, endpoints: Sequence[Endpoint]) -> ArmResult:
    with (
        Ring(endpoints, path=arm.path, parts=arm.parts, tls=PLAIN) as ring,
        ring.load(
            model,
            tensor_split=[1.0] * arm.stages,
            n_ctx=_CONTEXT,
            n_threads=1,
            repack=False,
        ) as loaded,
    ):
        texts = [
            prompt + "".join(loaded.generate(prompt, n_predict=N_PREDICT)) for prompt in PROMPTS
        ]
        window = loaded.window
        md5 = hashlib.md5("\0".join(texts).encode(), usedforsecurity=False).hexdigest()
        return ArmResult(arm, texts, md5, window.steps, window.per_step())
