"""`ringline bench groups`: what several steps in flight give, over nodes of our own on loopback.

Cells are run in rounds, every second round in reversed order; only ratios of one run mean anything
on a shared machine. Sizes are tokens, times seconds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path as FilePath
from typing import Final

from ringline.bench.cells import Cell, measure_cell, stage_nodes
from ringline.bench.group_report import GroupReport, PromptFigures
from ringline.bench.llama_server import Binaries, measure_llama_server
from ringline.bench.machine import describe_machine
from ringline.bench.prompts import PromptLoad, measure_delay, time_prompt
from ringline.bench.report import in_turns
from ringline.bench.streams import Figures, Load
from ringline.client.edge import Path
from ringline.engine.local_nodes import LocalNodes
from ringline.errors import CallerError
from ringline.llama.gguf_file import check_model_file

__all__ = ["FULL", "QUICK", "Plan", "run_groups"]

#: llama-server is asked with these numbers of streams, of those that are measured.
_STREAMS_OF_LLAMA_SERVER: Final = (8, 32)
#: the prompts are measured over two stages.
_PROMPT_STAGES: Final = 2
Run = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured: all combinations, `rounds` times.

    Attributes:
        groups, streams, stages, paths, switch_ms: of the cells.
        rounds: how often each cell runs.
        load: what each stream does.
        prompt: which long prompts; None: none.
        binaries: llama.cpp's programs, if they are to be measured too.
    """

    groups: Sequence[int] = (1, 2, 3)
    streams: Sequence[int] = (1, 4, 8, 16, 32)
    stages: Sequence[int] = (2, 3)
    paths: Sequence[Path] = (Path.HUB, Path.DIRECT, Path.RENDEZVOUS)
    rounds: int = 3
    load: Load = field(default_factory=Load)
    prompt: PromptLoad | None = field(default_factory=PromptLoad)
    binaries: Binaries | None = None
    switch_ms: Sequence[float | None] = (None,)

    def cells(self) -> list[Cell]:
        """All combinations. What is compared stands close together: it runs shortly after."""
        return [
            Cell(groups, streams, stages, path, switch)
            for stages in self.stages
            for streams in self.streams
            for path in self.paths
            for groups in self.groups
            for switch in self.switch_ms
        ]

    def check(self) -> None:
        """Refuse what cannot be measured, before anything starts.

        Raises:
            CallerError: says what.
        """
        for name in ("groups", "streams", "stages"):
            if not getattr(self, name) or min(getattr(self, name)) < 1:
                raise CallerError(f"--{name} needs numbers from 1 on, with commas between them")
        if Path.COPY in self.paths or not self.paths:
            raise CallerError("--path needs some of hub, direct, rendezvous")
        if self.binaries is not None:
            self.binaries.check()


FULL: Final = Plan()
#: to see that it works, not to compare.
QUICK: Final = Plan(
    groups=(1, 2),
    streams=(2,),
    stages=(2,),
    paths=(Path.RENDEZVOUS,),
    rounds=1,
    load=Load(n_prompt=8, n_predict=4, seconds=0.1),
    prompt=PromptLoad(n_prompt=64, n_long=512, n_before=4, repeat=1),
)


def run_groups(model: FilePath, plan: Plan, *, say: Callable[[str], None]) -> GroupReport:
    """Measure everything.

    Args:
        model: a GGUF file.
        plan: what.
        say: gets a line of talk now and then.

    Raises:
        CallerError: the plan or the model cannot be used. RinglineError: a peer failed.
    """
    plan.check()
    check_model_file(model)
    machine = describe_machine()
    count = max(*plan.stages, _PROMPT_STAGES)
    say(f"starting {count} nodes on loopback")
    with stage_nodes(count) as nodes:
        bench = _Bench(nodes, model, plan, say)
        bench.run()
    return GroupReport(machine, bench.cells, bench.prompts, bench.llama_server, plan.load)


class _Bench:
    """What has been measured so far."""

    def __init__(
        self, nodes: LocalNodes, model: FilePath, plan: Plan, say: Callable[[str], None]
    ) -> None:
        self._nodes = nodes
        self._model = model
        self._plan = plan
        self._say = say
        self._seed = 0
        streams = _STREAMS_OF_LLAMA_SERVER if plan.binaries is not None else ()
        self.cells: dict[Cell, list[Figures]] = {cell: [] for cell in plan.cells()}
        self.prompts: list[PromptFigures] = []
        self.llama_server: dict[int, list[Figures]] = {
            count: [] for count in plan.streams if count in streams
        }

    def run(self) -> None:
        """Run all rounds."""
        runs = self._runs()
        for number, (what, run) in enumerate(in_turns(runs, self._plan.rounds)):
            round_ = number // len(runs)
            self._say(f"round {round_ + 1} of {self._plan.rounds}: {what}")
            self._seed = round_  # all cells of a round get the same prompts
            run()

    def _runs(self) -> list[tuple[str, Run]]:
        """One round, in words and deeds; llama-server runs beside what it is compared to."""
        runs: list[tuple[str, Run]] = []
        asked: set[int] = set()
        for cell in self.cells:
            if cell.streams in self.llama_server and cell.streams not in asked:
                asked.add(cell.streams)
                runs.append(self._llama_server_run(cell.streams))
            runs.append(self._cell_run(cell))
        prompt = self._plan.prompt
        if prompt is not None:
            runs.append(("long prompts", partial(self._run_prompts, prompt)))
        return runs

    def _cell_run(self, cell: Cell) -> tuple[str, Run]:
        def run() -> None:
            plan, seed = self._plan, self._seed
            figures = measure_cell(cell, self._nodes, self._model, plan.load, seed=seed)
            self.cells[cell].append(figures)

        return str(cell), run

    def _llama_server_run(self, streams: int) -> tuple[str, Run]:
        binaries = self._plan.binaries
        assert binaries is not None

        def run() -> None:
            load, seed = self._plan.load, self._seed
            figures = measure_llama_server(binaries, self._model, streams, load, seed=seed)
            self.llama_server[streams].append(figures)

        return f"llama-server, {streams} streams", run

    def _run_prompts(self, load: PromptLoad) -> None:
        nodes, model, seed = self._nodes, self._model, self._seed
        ring = time_prompt(nodes, model, load, stages=_PROMPT_STAGES, seed=seed)
        even = time_prompt(nodes, model, load, stages=_PROMPT_STAGES, seed=seed, even=True)
        local = time_prompt(nodes, model, load, stages=0, seed=seed)
        delay = measure_delay(nodes, model, load, seed=seed)
        self.prompts.append(PromptFigures(ring, even, local, delay))
