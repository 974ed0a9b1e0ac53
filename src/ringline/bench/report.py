"""What a measurement says: medians over rounds, ratios, aims, and differing tokens. All pure.

A figure is a number with a name that ends in its unit. A ratio pairs the rounds: the figure of one
arm over that of another in the same round, then the median of these. What slows the machine down
for a while slows both down. The best is the fastest round of one over the fastest of the other:
others on the machine only ever add time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

__all__ = [
    "Aim",
    "GraphFigures",
    "Ids",
    "Series",
    "StepReport",
    "first_difference",
    "in_turns",
]

T = TypeVar("T")
Ids = Mapping[str, Sequence[int]]

#: arms that are compared: name of the ratio -> (arm, base).
RATIOS: Final = {
    "ringline_direct/stock": ("ringline_direct", "stock"),
    "ringline_hub/stock": ("ringline_hub", "stock"),
    "ringline_on_stock/stock": ("ringline_on_stock", "stock"),
    "stock_on_ringline/stock": ("stock_on_ringline", "stock"),
    "stock/local": ("stock", "local"),
}
#: the same for single commands.
COMMAND_RATIOS: Final = {
    "ringline/stock": ("ringline", "stock"),
    "ringline_on_stock/stock": ("ringline_on_stock", "stock"),
    "stock_on_ringline/stock": ("stock_on_ringline", "stock"),
}


@dataclass(frozen=True, slots=True)
class Series:
    """The figures of one arm, round by round; each round has the same figures.

    Attributes:
        name: as in the JSON.
        label: for people.
        rounds: {figure: value}, in the order in which they were measured.
        paths: how many hidden states took each path, where the client counts them.
    """

    name: str
    label: str
    rounds: tuple[Mapping[str, float], ...]
    paths: Mapping[str, int] = field(default_factory=dict)

    def median(self, figure: str) -> float:
        """The median of a figure over the rounds."""
        return statistics.median(values[figure] for values in self.rounds)

    def over(self, base: Series, figure: str) -> float:
        """The median over the rounds of our figure divided by that of `base`."""
        pairs = zip(self.rounds, base.rounds, strict=True)
        return statistics.median(ours[figure] / theirs[figure] for ours, theirs in pairs)

    def best_over(self, base: Series, figure: str) -> float:
        """The smallest of our figures divided by the smallest of `base`; for times only."""
        ours, theirs = (min(r[figure] for r in one.rounds) for one in (self, base))
        return ours / theirs

    def as_json(self) -> dict[str, Any]:
        """Name, the median of each figure, the rounds, and the paths where there are any."""
        medians = {figure: self.median(figure) for figure in self.rounds[0]}
        rounds = [dict(values) for values in self.rounds]
        paths = {"paths": dict(self.paths)} if self.paths else {}
        return {"name": self.name, **medians, "rounds": rounds, **paths}


@dataclass(frozen=True, slots=True)
class GraphFigures:
    """A graph of a decode step between C and the wire, medians in milliseconds.

    Attributes:
        n_tensors, n_nodes: of the graph; `size`: its body in bytes.
        encode_ms: from ggml's structs in memory to the body of GRAPH_COMPUTE.
        decode_ms: from the body to a checked graph that ggml can compute, its structure being new.
        again_ms: the same of a structure that was checked before, as when libllama builds it anew.
    """

    n_tensors: int
    n_nodes: int
    size: int
    encode_ms: float
    decode_ms: float
    again_ms: float

    def as_json(self) -> dict[str, float]:
        """All figures by name."""
        return {
            "n_tensors": self.n_tensors,
            "n_nodes": self.n_nodes,
            "bytes": self.size,
            "encode_ms": self.encode_ms,
            "decode_ms": self.decode_ms,
            "again_ms": self.again_ms,
        }


@dataclass(frozen=True, slots=True)
class Aim:
    """One aim: the measured value and the limit that it has to keep, at most or at least."""

    what: str
    value: float
    limit: float
    at_most: bool = True

    @property
    def met(self) -> bool:
        """Whether the value keeps the limit."""
        return self.value <= self.limit if self.at_most else self.value >= self.limit

    def as_json(self) -> dict[str, Any]:
        """The aim as one flat object."""
        limit = "at_most" if self.at_most else "at_least"
        return {"what": self.what, "value": self.value, limit: self.limit, "met": self.met}


@dataclass(frozen=True, slots=True)
class StepReport:
    """Everything that `ringline bench step` measured.

    Attributes:
        machine: what it ran on, in words and numbers.
        arms: decode steps and prompts; figures token_ms, prompt_ms.
        commands: single commands; figures get_us, set_us, bulk_gib (GiB per second).
        graph: a graph's way to the wire and back.
    """

    machine: Mapping[str, Any]
    arms: Sequence[Series]
    commands: Sequence[Series]
    graph: GraphFigures

    def ratios(self) -> dict[str, dict[str, float]]:
        """Time per token and per prompt, arm over base, and the best of each; below 1 is faster."""
        figures = {"token": "token_ms", "prompt": "prompt_ms"}
        ratios = _compare(self.arms, RATIOS, figures)
        for name, (arm, base) in _pairs(self.arms, RATIOS).items():
            for short, full in figures.items():
                ratios[name][f"{short}_best"] = arm.best_over(base, full)
        return ratios

    def command_ratios(self) -> dict[str, dict[str, float]]:
        """Times of GET and SET of 64 bytes, below 1 is faster; rate of 64 MiB, above 1 is."""
        figures = {"get": "get_us", "set": "set_us", "bulk_rate": "bulk_gib"}
        return _compare(self.commands, COMMAND_RATIOS, figures)

    def aims(self) -> list[Aim]:
        """What was aimed at, and what came out."""
        ours = self.ratios()["ringline_direct/stock"]
        rate = self.command_ratios()["ringline/stock"]["bulk_rate"]
        return [
            Aim("time per token, ringline direct over stock", ours["token"], 1.0),
            Aim("time per prompt, ringline direct over stock", ours["prompt"], 1.0),
            Aim("rate of SET_TENSOR 64 MiB, ringline over stock", rate, 1.0, at_most=False),
            Aim("encode a graph, ms", self.graph.encode_ms, 1.0),
            Aim("decode a graph of a new structure, ms", self.graph.decode_ms, 1.0),
            Aim("decode a graph of a known structure, ms", self.graph.again_ms, 1.0),
        ]

    def as_json(self) -> dict[str, Any]:
        """The report as the JSON file has it."""
        return {
            "machine": dict(self.machine),
            "ratios": self.ratios(),
            "arms": [arm.as_json() for arm in self.arms],
            "micro": {
                "ratios": self.command_ratios(),
                "commands": [series.as_json() for series in self.commands],
                "graph": self.graph.as_json(),
            },
            "aims": [aim.as_json() for aim in self.aims()],
        }


def _compare(
    series: Sequence[Series], pairs: Mapping[str, tuple[str, str]], figures: Mapping[str, str]
) -> dict[str, dict[str, float]]:
    return {
        name: {short: arm.over(base, full) for short, full in figures.items()}
        for name, (arm, base) in _pairs(series, pairs).items()
    }


def _pairs(
    series: Sequence[Series], names: Mapping[str, tuple[str, str]]
) -> dict[str, tuple[Series, Series]]:
    by_name = {one.name: one for one in series}
    return {name: (by_name[arm], by_name[base]) for name, (arm, base) in names.items()}


def in_turns(items: Sequence[T], rounds: int) -> Iterator[T]:
    """All items, `rounds` times; every second round in reversed order.

    A drift of the machine over time then favours none of them.
    """
    for number in range(rounds):
        yield from reversed(items) if number % 2 else items


def first_difference(expected: Ids, found: Ids) -> str | None:
    """Where the tokens of two runs differ first, in words; None if they are the same."""
    if expected.keys() != found.keys():
        return f"other prompts: {', '.join(found)} instead of {', '.join(expected)}"
    for prompt, wanted in expected.items():
        got = found[prompt]
        if list(got) != list(wanted):
            same = [ours == theirs for ours, theirs in zip(wanted, got, strict=False)]
            return f"{prompt}, token {[*same, False].index(False) + 1}"
    return None
