"""What `ringline bench groups` says: cells, and ratios of the same run. All pure.

A cell has been run once in each round. Its figures are medians over the rounds; a ratio pairs the
rounds, as in `report`.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from ringline.bench.cells import Cell
from ringline.bench.prompts import Delay
from ringline.bench.report import Aim
from ringline.bench.streams import Figures, Load
from ringline.client.edge import Path

__all__ = ["GroupReport", "PromptFigures", "summary"]

#: from so many streams on, groups are expected to help.
_MANY: Final = 8
Runs = Sequence[Figures]


@dataclass(frozen=True, slots=True)
class PromptFigures:
    """Long prompts, in one round.

    Attributes:
        ring: seconds of a prompt over two stages with the default split.
        even: with as many layers on each.
        local: seconds of it on this CPU, one thread.
        delay: what a still longer one did to the streams beside it.
    """

    ring: float
    even: float
    local: float
    delay: Delay


@dataclass(frozen=True, slots=True)
class GroupReport:
    """Everything that was measured, round by round.

    Attributes:
        machine: what it ran on, in words and numbers.
        cells: the runs of each cell.
        prompts: long prompts.
        llama_server: by number of streams, the runs of llama-server; empty where it was not asked.
        load: what a request was.
    """

    machine: Mapping[str, Any]
    cells: Mapping[Cell, Runs]
    prompts: Sequence[PromptFigures]
    llama_server: Mapping[int, Runs] = field(default_factory=dict)
    load: Load = field(default_factory=Load)

    def two_over_one(self) -> dict[int, float]:
        """By streams: tok/s of two groups over that of one; two stages, rendezvous."""
        return {
            cell.streams: _ratio(runs, self.cells[one])
            for cell, runs in self.cells.items()
            if (cell.groups, cell.stages, cell.path) == (2, 2, Path.RENDEZVOUS)
            and cell.streams >= _MANY
            and (one := Cell(1, cell.streams, 2, cell.path)) in self.cells
        }

    def rendezvous_over_direct(self) -> dict[int, float]:
        """By streams: tok/s by rendezvous over that by copy-to; three groups on three stages."""
        return {
            cell.streams: _ratio(runs, self.cells[direct])
            for cell, runs in self.cells.items()
            if (cell.groups, cell.stages, cell.path) == (3, 3, Path.RENDEZVOUS)
            and (direct := Cell(3, cell.streams, 3, Path.DIRECT)) in self.cells
        }

    def over_llama_server(self) -> dict[int, float]:
        """By streams: tok/s of two groups on two stages, rendezvous, over that of llama-server."""
        return {
            streams: _ratio(self.cells[cell], runs)
            for streams, runs in self.llama_server.items()
            if (cell := Cell(2, streams, 2, Path.RENDEZVOUS)) in self.cells
        }

    def prompt_over_local(self) -> float:
        """Time of a prompt over two even stages, over that on this CPU with one thread."""
        return statistics.median(round_.even / round_.local for round_ in self.prompts)

    def delay_in_steps(self) -> float:
        """By how many full steps the token of a stream was late while a long prompt was decoded."""
        return statistics.median(round_.delay.in_steps for round_ in self.prompts)

    def ratios(self) -> dict[str, Any]:
        """All ratios; by number of streams where there is one for each."""
        ratios: dict[str, Any] = {
            "groups_2/groups_1": _by_streams(self.two_over_one()),
            "rendezvous/direct": _by_streams(self.rendezvous_over_direct()),
        }
        if self.prompts:
            ratios |= {
                "prompt/local": {
                    "ratio": self.prompt_over_local(),
                    "default_split_ratio": statistics.median(
                        p.ring / p.local for p in self.prompts
                    ),
                    "even_ms": _median_ms(p.even for p in self.prompts),
                    "ring_ms": _median_ms(p.ring for p in self.prompts),
                    "local_ms": _median_ms(p.local for p in self.prompts),
                },
                "delay/step": {
                    "ratio": self.delay_in_steps(),
                    "longest_ms": _median_ms(p.delay.longest for p in self.prompts),
                    "usual_ms": _median_ms(p.delay.usual for p in self.prompts),
                    "step_ms": _median_ms(p.delay.step for p in self.prompts),
                },
            }
        if self.llama_server:
            ratios["ringline/llama_server"] = _by_streams(self.over_llama_server())
        return ratios

    def aims(self) -> list[Aim]:
        """What was aimed at, and what came out."""
        aims = [
            Aim(f"two groups over one, tok/s, {streams} streams", ratio, 1.5, at_most=False)
            for streams, ratio in self.two_over_one().items()
        ]
        aims += [
            Aim(f"rendezvous over copy-to, 3 groups, {streams} streams", ratio, 1.0, at_most=False)
            for streams, ratio in self.rendezvous_over_direct().items()
        ]
        aims += [
            Aim(f"ringline over llama-server, tok/s, {streams} streams", ratio, 1.5, at_most=False)
            for streams, ratio in self.over_llama_server().items()
        ]
        if self.prompts:
            aims.append(
                Aim(
                    "a prompt over two even stages, over one local thread",
                    self.prompt_over_local(),
                    0.65,
                )
            )
            aims.append(Aim("delay by a long prompt, over a full step", self.delay_in_steps(), 1.0))
        return aims

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON file has it."""
        report: dict[str, Any] = {
            "machine": dict(self.machine),
            "load": {"prompt": self.load.n_prompt, "predict": self.load.n_predict},
            "cells": [_cell_json(cell, runs) for cell, runs in self.cells.items()],
            "ratios": self.ratios(),
        }
        if self.llama_server:
            report["llama_server"] = [
                {"streams": streams, "stages": 2, **summary(runs)}
                for streams, runs in self.llama_server.items()
            ]
        return report


def summary(runs: Runs) -> dict[str, Any]:
    """The medians of some runs: rates, seconds, milliseconds, shares of one processor."""

    def median(values: Iterable[float]) -> float:
        return statistics.median(values)

    *busy, coordinator, machine = map(median, zip(*(run.busy for run in runs), strict=True))
    return {
        "tok_s": median(run.tok_s for run in runs),
        "ttft_s": median(run.ttft.median for run in runs),
        "ttft_p95_s": median(run.ttft.p95 for run in runs),
        "tpot_ms": 1e3 * median(run.tpot.median for run in runs),
        "tpot_p95_ms": 1e3 * median(run.tpot.p95 for run in runs),
        "busy": busy,
        "coordinator_busy": coordinator,
        "others_busy": max(0.0, machine - sum(busy) - coordinator),
        "rounds": [run.tok_s for run in runs],
    }


def _cell_json(cell: Cell, runs: Runs) -> dict[str, Any]:
    return {
        "groups": cell.groups,
        "streams": cell.streams,
        "stages": cell.stages,
        "path": cell.path.value,
        **({} if cell.switch_ms is None else {"switch_ms": cell.switch_ms}),
        **summary(runs),
    }


def _ratio(runs: Runs, base: Runs) -> float:
    pairs = zip(runs, base, strict=True)
    return statistics.median(ours.tok_s / theirs.tok_s for ours, theirs in pairs)


def _by_streams(ratios: Mapping[int, float]) -> dict[str, float]:
    return {str(streams): ratio for streams, ratio in ratios.items()}


def _median_ms(seconds: Iterable[float]) -> float:
    return 1e3 * statistics.median(seconds)
