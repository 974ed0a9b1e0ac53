"""The coordinator of `ringline bench narrow`, a process in a namespace of its own.

Arguments: a model, the nodes, the number of streams, a JSON list of arms. For each arm it loads the
model, measures, asks by a line `limit` on stdout for a narrow link, waits for a line on stdin, and
measures again; `free` asks for the whole link back. A line of JSON with the two rates ends the arm.
"""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path as FilePath
from typing import Any

from ringline.bench.cells import EngineService
from ringline.bench.streams import Load, run_streams
from ringline.client.edge import Path
from ringline.client.thin import Parts
from ringline.engine.engine import Engine
from ringline.engine.ring import Ring
from ringline.engine.ring_model import PlacedModel
from ringline.errors import RinglineError
from ringline.net.tls import PLAIN

__all__ = ["FREE", "LIMIT", "Arm", "measure_arm"]

LIMIT, FREE = "limit", "free"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run over the link.

    Attributes:
        name: for people.
        path: of hidden states.
        parts: of level 5, as Parts.parse reads them.
        n_prompt, n_predict: tokens of a request.
        seconds: least length of each window.
    """

    name: str
    path: str
    parts: str
    n_prompt: int
    n_predict: int
    seconds: float

    def as_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self)


def _ask(line: str) -> None:
    print(line, flush=True)
    sys.stdin.readline()


def measure_arm(arm: Arm, model: FilePath, nodes: list[str], streams: int) -> dict[str, Any]:
    """Tokens per second over the whole link and over the narrow one.

    Raises:
        RinglineError: a node failed.
    """
    n_ctx = streams * 256
    with (
        Ring(nodes, path=Path(arm.path), parts=Parts.parse(arm.parts, arm.name), tls=PLAIN) as ring,
        ring.place(model, n_ctx=n_ctx, n_threads=1) as placed,
    ):
        rates = []
        try:
            for line in (FREE, LIMIT):
                # The engine asks all nodes for memory when it is made: that is not measured.
                rates.append(_rate(arm, ring, placed, streams, n_ctx, line))
        finally:
            _ask(FREE)
        return {"name": arm.name, "free_tok_s": rates[0], "narrow_tok_s": rates[1]}


def _rate(arm: Arm, ring: Ring, placed: PlacedModel, streams: int, n_ctx: int, line: str) -> float:
    load = Load(arm.n_prompt, arm.n_predict, arm.seconds)
    with Engine(ring, placed, parallel=streams, n_ctx=n_ctx) as engine:
        # Tables are sent, graphs and samplers known: a step of a text is measured.
        engine.submit([1] * arm.n_prompt, n_predict=2).result(600.0)
        _ask(line)
        return run_streams(EngineService(engine), streams, load).tok_s


def main() -> None:
    """Run all arms."""
    model, nodes, streams, arms = sys.argv[1:]
    for fields in json.loads(arms):
        try:
            found = measure_arm(Arm(**fields), FilePath(model), nodes.split(","), int(streams))
        except RinglineError as error:
            found = {"error": str(error)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
