"""What `ringline bench accounting` says: bytes of a step, by cell, command and node. All pure.

A figure of a cell is the median over its steps. Bytes.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ringline.bench.report import Aim
from ringline.client.counters import Traffic
from ringline.client.thin import Parts

__all__ = ["AccountingReport", "Cell", "Figures", "StepTraffic", "parts_name"]

#: by endpoint, in the order of the stages.
StepTraffic = Mapping[str, Traffic]

#: (rows, stages) -> most bytes out and in of a step, all parts on.
_LIMITS: Final = {(32, 3): (1000, 300), (8, 2): (300, 100), (1, 2): (100, 20)}
#: most bytes out of a step in which the window grows, all parts on.
_GROW_LIMIT: Final = 4000
#: most time of a step over that without any part: with one of them, with all.
_PART_RATIO: Final = 1.02
_WHOLE_RATIO: Final = 1.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to run: how many rows decode at once, over how many nodes, with which parts."""

    rows: int
    stages: int
    parts: Parts

    def __str__(self) -> str:
        """The cell in words."""
        return f"{self.rows} rows, {self.stages} stages, {parts_name(self.parts)}"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was counted in a cell.

    Attributes:
        steady: the traffic of each step in which every row decoded one token.
        grow: that of such a step in which libllama's window over the cache grew.
        tokens: what each row generated.
        seconds: how long each steady step took.
    """

    steady: Sequence[StepTraffic]
    grow: StepTraffic
    tokens: Sequence[Sequence[int]]
    seconds: Sequence[float] = ()

    @property
    def bytes_out(self) -> int:
        """Bytes to all nodes in a steady step."""
        return _median(_total(step).bytes_out for step in self.steady)

    @property
    def bytes_in(self) -> int:
        """Bytes from all nodes in a steady step."""
        return _median(_total(step).bytes_in for step in self.steady)

    @property
    def commands(self) -> dict[str, int]:
        """How often each command is sent in a steady step; without those that mostly are not."""
        steps = [_total(step).commands for step in self.steady]
        names = sorted({name for commands in steps for name in commands})
        counts = {name: _median(commands.get(name, 0) for commands in steps) for name in names}
        return {name: count for name, count in counts.items() if count}

    @property
    def nodes(self) -> list[tuple[str, int, int]]:
        """Endpoint, bytes out and in of each node in a steady step, in the order of the stages."""
        return [
            (
                endpoint,
                _median(step[endpoint].bytes_out for step in self.steady),
                _median(step[endpoint].bytes_in for step in self.steady),
            )
            for endpoint in self.grow
        ]

    @property
    def grow_bytes(self) -> tuple[int, int]:
        """Bytes out and in of the step in which the window grew."""
        total = _total(self.grow)
        return total.bytes_out, total.bytes_in

    def as_json(self) -> dict[str, Any]:
        """The figures as the JSON file has them."""
        grow_out, grow_in = self.grow_bytes
        return {
            "bytes_out": self.bytes_out,
            "bytes_in": self.bytes_in,
            "commands": self.commands,
            "nodes": [
                {"endpoint": endpoint, "bytes_out": out, "bytes_in": in_}
                for endpoint, out, in_ in self.nodes
            ],
            "grow": {"bytes_out": grow_out, "bytes_in": grow_in},
        }


@dataclass(frozen=True, slots=True)
class AccountingReport:
    """Everything that was counted.

    Attributes:
        machine: what it ran on, in words and numbers.
        runs: of each cell, one for each round; bytes are those of the first.
    """

    machine: Mapping[str, Any]
    runs: Mapping[Cell, Sequence[Figures]]

    @property
    def cells(self) -> dict[Cell, Figures]:
        """The figures of each cell."""
        return {cell: runs[0] for cell, runs in self.runs.items()}

    def milliseconds(self, cell: Cell) -> float:
        """Of a step: the median over the rounds of their medians."""
        return 1e3 * statistics.median(map(_pace, self.runs[cell]))

    def ratio(self, cell: Cell) -> float | None:
        """The time of a step over that without any part, paired by rounds; None: no such pair."""
        plain = self.runs.get(dataclasses.replace(cell, parts=Parts.none()))
        if plain is None:
            return None
        pairs = zip(self.runs[cell], plain, strict=True)
        return statistics.median(_pace(ours) / _pace(base) for ours, base in pairs)

    def aims(self) -> list[Aim]:
        """What was aimed at, for the cells that were counted with all parts on."""
        aims: list[Aim] = []
        for cell, figures in self.cells.items():
            limits = _LIMITS.get((cell.rows, cell.stages))
            if cell.parts != Parts.all() or limits is None:
                continue
            name = f"{cell.rows} rows, {cell.stages} stages"
            grow_out, _ = figures.grow_bytes
            aims += [
                Aim(f"{name}: bytes out", figures.bytes_out, limits[0]),
                Aim(f"{name}: bytes in", figures.bytes_in, limits[1]),
                Aim(f"{name}: bytes out as the window grows", grow_out, _GROW_LIMIT),
            ]
        return aims

    def time_aims(self) -> list[Aim]:
        """No part slows a step down, and all together do not at all; of more rounds than one."""
        aims: list[Aim] = []
        for cell, runs in self.runs.items():
            ratio = self.ratio(cell)
            if ratio is not None and cell.parts != Parts.none() and len(runs) > 1:
                limit = _WHOLE_RATIO if cell.parts == Parts.all() else _PART_RATIO
                aims.append(Aim(f"{cell}: time over that without any", ratio, limit))
        return aims

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON file has it."""
        return {
            "machine": dict(self.machine),
            "cells": [
                {
                    **_cell_json(cell, figures),
                    "ms": self.milliseconds(cell),
                    "ratio": self.ratio(cell),
                }
                for cell, figures in self.cells.items()
            ],
            "aims": [aim.as_json() for aim in [*self.aims(), *self.time_aims()]],
        }


def parts_name(parts: Parts) -> str:
    """all, none, or the names of the parts that are on, with + between them."""
    value = _parts_json(parts)
    return value if isinstance(value, str) else "+".join(value)


def _parts_json(parts: Parts) -> str | list[str]:
    if parts == Parts.all():
        return "all"
    names = [name for name, on in dataclasses.asdict(parts).items() if on]
    return names or "none"


def _cell_json(cell: Cell, figures: Figures) -> dict[str, Any]:
    head = {"rows": cell.rows, "stages": cell.stages, "parts": _parts_json(cell.parts)}
    return head | figures.as_json()


def _total(step: StepTraffic) -> Traffic:
    return Traffic.total(step.values())


def _pace(figures: Figures) -> float:
    return statistics.median(figures.seconds) if figures.seconds else math.nan


def _median(values: Iterable[int]) -> int:
    """The median, as a value that was counted: not a mean of two."""
    return statistics.median_low(values)
