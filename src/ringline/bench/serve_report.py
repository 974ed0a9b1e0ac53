"""What `ringline bench serve` says: figures of both arms, ratios of the same round, aims. All pure.

A ratio pairs the rounds, as in `report`. Seconds in, milliseconds and microseconds out.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ringline.bench.report import Aim
from ringline.bench.serve_memory import Sample
from ringline.bench.streams import Figures, Load
from ringline.engine.metrics import Summary

__all__ = ["Latency", "Meters", "ServeReport"]

#: the number of streams that the aims are about.
_AIM_STREAMS: Final = 8
_LEAST_THROUGHPUT: Final = 0.95
_LONGEST_STEP: Final = 1.02
#: memory is flat if the last tenth of the requests has at most so much more than after a fifth.
_MOST_GROWTH: Final = 1.05
Arms = tuple[Sequence[Figures], Sequence[Figures]]


class Meters(NamedTuple):
    """What is read at both ends of a run; in Figures.busy what each gained in a second.

    Attributes:
        http, engine, nodes, client, machine: processor seconds; http is 0 without an API.
        steps, step_seconds: decodes of the engine, and the time in them.
    """

    http: float
    engine: float
    nodes: float
    client: float
    machine: float
    steps: float
    step_seconds: float


@dataclass(frozen=True, slots=True)
class Latency:
    """Seconds of small questions, by path: while nothing else runs, and beside streams."""

    idle: Mapping[str, Sequence[float]]
    loaded: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class ServeReport:
    """Everything that was measured, round by round.

    Attributes:
        machine: what it ran on, in words and numbers.
        load: what a request was.
        stages: of the ring.
        runs: by streams: the bare engine's rounds, then the API's.
        latency: of each round.
        memory: samples over many requests; empty: not measured.
    """

    machine: Mapping[str, Any]
    load: Load
    stages: int
    runs: Mapping[int, Arms]
    latency: Sequence[Latency]
    memory: Sequence[Sample]

    def throughput(self, streams: int) -> float:
        """Tokens a second of the API over those of the bare engine."""
        return self._ratio(streams, lambda figures: figures.tok_s)

    def step(self, streams: int) -> float:
        """Mean time of an engine's step behind the API over that of the bare one."""
        return self._ratio(streams, _step_seconds)

    def growth(self) -> dict[str, float]:
        """Memory of each process in the last tenth over that between one and three tenths."""
        n = len(self.memory)
        early, late = self.memory[n // 10 : max(n // 10 + 1, 3 * n // 10)], self.memory[-n // 10 :]

        def over(size: Callable[[Sample], int]) -> float:
            return statistics.median(map(size, late)) / statistics.median(map(size, early))

        return {"http": over(lambda s: s.http), "engine": over(lambda s: s.engine)}

    def aims(self) -> list[Aim]:
        """What was aimed at, and what came out."""
        found = []
        if _AIM_STREAMS in self.runs:
            what = f"the API over the bare engine, {_AIM_STREAMS} streams, "
            ratio, step = self.throughput(_AIM_STREAMS), self.step(_AIM_STREAMS)
            found.append(Aim(what + "tok/s", ratio, _LEAST_THROUGHPUT, at_most=False))
            found.append(Aim(what + "time of a step", step, _LONGEST_STEP))
        if self.memory:
            for name, growth in self.growth().items():
                found.append(Aim(f"memory of the {name} process over time", growth, _MOST_GROWTH))
        return found

    def row(self, streams: int) -> dict[str, Any]:
        """The figures of one number of streams: medians over the rounds, and ratios."""
        bare, api = (_medians(runs) for runs in self.runs[streams])
        return {
            "streams": streams,
            "throughput_ratio": self.throughput(streams),
            "step_ratio": self.step(streams),
            "bare": bare,
            "api": api,
        }

    def latencies(self) -> dict[str, dict[str, Summary]]:
        """By path: of all rounds together, idle and loaded."""
        return {
            path: {
                "idle": Summary.of(s for round_ in self.latency for s in round_.idle[path]),
                "loaded": Summary.of(s for round_ in self.latency for s in round_.loaded[path]),
            }
            for path in (self.latency[0].idle if self.latency else ())
        }

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON file has it."""
        return {
            "machine": dict(self.machine),
            "load": {"prompt": self.load.n_prompt, "predict": self.load.n_predict},
            "stages": self.stages,
            "streams": [self.row(streams) for streams in self.runs],
            "latency_ms": {
                path: {name: _in_ms(summary) for name, summary in both.items()}
                for path, both in self.latencies().items()
            },
            "memory": [
                {"requests": s.requests, "http": s.http, "engine": s.engine} for s in self.memory
            ],
            "growth": self.growth() if self.memory else {},
            "aims": [aim.as_json() for aim in self.aims()],
        }

    def _ratio(self, streams: int, figure: Callable[[Figures], float]) -> float:
        bare, api = self.runs[streams]
        return statistics.median(
            figure(ours) / figure(base) for base, ours in zip(bare, api, strict=True)
        )


def _step_seconds(figures: Figures) -> float:
    meters = Meters(*figures.busy)
    return meters.step_seconds / meters.steps


def _medians(runs: Sequence[Figures]) -> dict[str, Any]:
    def of(figure: Callable[[Figures, Meters], float]) -> float:
        return statistics.median(figure(run, Meters(*run.busy)) for run in runs)

    return {
        "tok_s": of(lambda run, _: run.tok_s),
        "ttft_s": of(lambda run, _: run.ttft.median),
        "ttft_p95_s": of(lambda run, _: run.ttft.p95),
        "tpot_ms": of(lambda run, _: 1e3 * run.tpot.median),
        "step_ms": of(lambda run, _: 1e3 * _step_seconds(run)),
        "http_us_per_token": of(lambda run, meters: 1e6 * meters.http / run.tok_s),
        "engine_us_per_token": of(lambda run, meters: 1e6 * meters.engine / run.tok_s),
        "client_us_per_token": of(lambda run, meters: 1e6 * meters.client / run.tok_s),
        "nodes_busy": of(lambda _, meters: meters.nodes),
        "machine_busy": of(lambda _, meters: meters.machine),
        "rounds": [run.tok_s for run in runs],
    }


def _in_ms(summary: Summary) -> dict[str, float]:
    return {"median": 1e3 * summary.median, "p95": 1e3 * summary.p95, "count": summary.count}
