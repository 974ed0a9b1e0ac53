"""`ringline bench accounting`: what a decode step costs on the wire, by command and by node.

A context is driven directly, without an engine: every counted step decodes one token of each row,
and nothing else is in it. Bytes are those of the coordinator's connections, frame headers included,
TCP/IP not: a busy machine changes none of them. Steps are timed as well, in interleaved rounds:
only ratios of one run mean anything there.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from ringline.bench.accounting_report import AccountingReport, Cell, Figures, StepTraffic
from ringline.bench.cells import stage_nodes
from ringline.bench.machine import describe_machine
from ringline.bench.report import first_difference, in_turns
from ringline.client.counters import Counters, Traffic
from ringline.client.edge import Path
from ringline.client.thin import Parts
from ringline.engine.local_nodes import LocalNodes
from ringline.engine.ring import Ring
from ringline.engine.ring_context import RingContext
from ringline.errors import CallerError, PeerError
from ringline.llama.batch import Batch
from ringline.llama.choice import Wanted
from ringline.llama.gguf_file import check_model_file
from ringline.llama.sampler import Sampler, SamplingParams
from ringline.net.tls import PLAIN

__all__ = ["FULL", "QUICK", "Plan", "run_accounting"]

#: libllama looks at the cache of a sequence through a window of a multiple of this.
_WINDOW: Final = 256
#: the context of each row: two windows.
_CONTEXT: Final = 2 * _WINDOW
#: most sequences of a context (LLAMA_MAX_SEQ).
_MOST_ROWS: Final = 256
_N_PROMPT: Final = 6
#: steps between the long prompt that leads to the window's end, and the step that passes it.
_BEFORE_GROWTH: Final = 4
#: tokens of a piece, as an engine has it; more rows than this go in several pieces.
_UBATCH: Final = 64
_SEED: Final = 7


@dataclass(frozen=True, slots=True)
class Plan:
    """What is counted: all combinations.

    Attributes:
        rows: streams that decode at once.
        stages: nodes.
        parts: which parts of level 5 are on.
        steps: how many steps the median is taken of; odd.
        rounds: how often each cell runs; bytes are the same each time, times are not.
    """

    rows: Sequence[int] = (1, 8, 32)
    stages: Sequence[int] = (2, 3, 4)
    parts: Sequence[Parts] = (
        Parts.none(),
        Parts(codec=True, rows=False, sampling=False),
        Parts(codec=False, rows=True, sampling=False),
        Parts(codec=False, rows=False, sampling=True),
        Parts.all(),
    )
    steps: int = 15
    rounds: int = 1

    def cells(self) -> list[Cell]:
        """All combinations."""
        return [
            Cell(rows, stages, parts)
            for stages in self.stages
            for rows in self.rows
            for parts in self.parts
        ]

    def check(self) -> None:
        """Refuse what cannot be counted, before anything starts.

        Raises:
            CallerError: says what.
        """
        for name in ("rows", "stages"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise CallerError(f"--{name} needs numbers from 1 on, with commas between them")
        if max(self.rows) > _MOST_ROWS:
            raise CallerError(f"--rows {max(self.rows)}: one step has at most {_MOST_ROWS} rows")
        if not self.parts:
            raise CallerError("--parts needs some of all, none, codec, rows, sampling")


FULL: Final = Plan()
#: one cell of each kind, to see that it works.
QUICK: Final = Plan(rows=(2,), stages=(2,), parts=(Parts.none(), Parts.all()), steps=3)


def run_accounting(model: FilePath, plan: Plan, *, say: Callable[[str], None]) -> AccountingReport:
    """Count everything.

    Args:
        model: a GGUF file.
        plan: what.
        say: gets a line of talk now and then.

    Raises:
        CallerError: the plan or the model cannot be used. RinglineError: a peer failed, or two sets
            of parts give different tokens.
    """
    plan.check()
    check_model_file(model)
    machine = describe_machine()
    cells: dict[Cell, list[Figures]] = {cell: [] for cell in plan.cells()}
    say(f"starting {max(plan.stages)} nodes on loopback")
    with stage_nodes(max(plan.stages)) as nodes:
        for number, cell in enumerate(in_turns(list(cells), plan.rounds)):
            say(f"round {number // len(cells) + 1} of {plan.rounds}: {cell}")
            cells[cell].append(_count(cell, nodes, model, plan.steps))
            _compare(cell, {known: runs[0] for known, runs in cells.items() if runs})
    return AccountingReport(machine, cells)


def _count(cell: Cell, nodes: LocalNodes, model: FilePath, n_steps: int) -> Figures:
    """Run one cell: prompts, steady steps, and the step in which the window grows."""
    n_ctx = cell.rows * _CONTEXT
    with (
        Ring(
            nodes.endpoints[: cell.stages], path=Path.RENDEZVOUS, parts=cell.parts, tls=PLAIN
        ) as ring,
        ring.place(model, n_ctx=n_ctx, n_threads=1) as placed,
        placed.context(
            n_ctx=n_ctx,
            n_batch=_CONTEXT + _N_PROMPT * cell.rows,
            n_ubatch=_UBATCH,
            n_seq_max=cell.rows,
        ) as context,
    ):
        streams = _Streams(context, placed.remote.counters, cell.rows)
        streams.begin()
        steady, seconds = [], []
        for _ in range(n_steps):
            began = time.perf_counter()
            steady.append(streams.step())
            seconds.append(time.perf_counter() - began)
        streams.approach_the_end_of_the_window()
        for _ in range(_BEFORE_GROWTH):
            streams.step()
        grow = streams.step()
        return Figures(steady, grow, streams.tokens, seconds)


class _Streams:
    """Rows that decode together: row i is sequence i, sampled greedily.

    Attributes:
        tokens: what each row has generated.
    """

    def __init__(self, context: RingContext, counters: Counters, n_rows: int) -> None:
        self._context = context
        self._counters = counters
        self._batch = Batch(context.n_batch)
        greedy = SamplingParams(temperature=0.0)
        self._samplers = [Sampler(context.model, greedy) for _ in range(n_rows)]
        self._random = random.Random(_SEED)
        self._positions = [0] * n_rows
        self._counted = counters.snapshot()
        self.tokens: list[list[int]] = [[] for _ in range(n_rows)]

    def begin(self) -> None:
        """Decode a short prompt of each row, all together."""
        self._run({row: self._draw(_N_PROMPT) for row in range(len(self.tokens))})
        self._counted = self._counters.snapshot()

    def step(self) -> StepTraffic:
        """Decode one token of every row; the traffic since the step before it, by endpoint."""
        self._run({row: tokens[-1:] for row, tokens in enumerate(self.tokens)})
        before, self._counted = self._counted, self._counters.snapshot()
        return {
            endpoint: traffic.since(before.get(endpoint, Traffic()))
            for endpoint, traffic in self._counted.items()
        }

    def approach_the_end_of_the_window(self) -> None:
        """Lengthen the first row by a prompt, until some steps fill the window.

        One row is enough: all of them look through the same window.
        """
        gap = _WINDOW - _BEFORE_GROWTH - self._positions[0]
        self._run({0: [self.tokens[0][-1], *self._draw(gap - 1)]})
        self._counted = self._counters.snapshot()

    def _run(self, runs: dict[int, list[int]]) -> None:
        """Decode some tokens of some rows, and choose the next token of each of these rows."""
        self._batch.clear()
        wanted: list[tuple[int, int]] = []
        for row, tokens in runs.items():
            index = self._batch.add_run(tokens, self._positions[row], row, logits_last=True)
            self._positions[row] += len(tokens)
            wanted.append((row, index))
        choices = self._context.step(
            self._batch, [Wanted(index, self._samplers[row]) for row, index in wanted]
        )
        for (row, _), choice in zip(wanted, choices, strict=True):
            self.tokens[row].append(choice.checked())

    def _draw(self, n_tokens: int) -> list[int]:
        return self._random.choices(range(self._context.model.n_vocab), k=n_tokens)


def _compare(cell: Cell, cells: dict[Cell, Figures]) -> None:
    """Compare a cell's tokens with those of the first cell that differs from it in its parts.

    Raises:
        PeerError: they differ: a part changes what is computed.
    """
    first = next(c for c in cells if (c.rows, c.stages) == (cell.rows, cell.stages))
    expected, found = (
        {f"row {row}": ids for row, ids in enumerate(cells[c].tokens)} for c in (first, cell)
    )
    difference = first_difference(expected, found)
    if difference is not None:
        raise PeerError(f"{cell} gives other tokens than {first}: {difference}")
