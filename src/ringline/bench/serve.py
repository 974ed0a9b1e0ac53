"""`ringline bench serve`: what HTTP costs, an API against the same engine without one.

Both run all the time, over the same nodes of our own on loopback, and are asked in turns: rounds,
every second one in reversed order. Only ratios of one run mean anything on a shared machine.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from ringline.bench.cells import stage_nodes
from ringline.bench.cpu import machine_seconds, process_seconds, tree_seconds
from ringline.bench.machine import describe_machine
from ringline.bench.programs import HOST, free_port, healthy, running
from ringline.bench.report import in_turns
from ringline.bench.serve_memory import MemoryLoad, Sample, measure_memory
from ringline.bench.serve_probe import Probe
from ringline.bench.serve_report import Latency, Meters, ServeReport
from ringline.bench.serve_services import (
    ApiService,
    BareService,
    end_tokens,
    engine_steps,
    read_steps,
)
from ringline.bench.streams import Figures, Load, run_streams
from ringline.engine.local_nodes import LocalNodes
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.messages import EngineSpec
from ringline.errors import CallerError
from ringline.llama.gguf_file import check_model_file

__all__ = ["FULL", "QUICK", "Plan", "run_serve"]

#: libllama rounds the context of a sequence up to a multiple of this.
_ROUND: Final = 256


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured.

    Attributes:
        streams: numbers of closed-loop streams.
        stages: local nodes, one thread each.
        rounds: how often each number of streams is run, with each arm.
        load: what each stream does.
        probes: how often each small question is asked, in each round.
        memory: the many requests.
    """

    streams: Sequence[int] = (1, 2, 4, 8, 16, 32)
    stages: int = 2
    rounds: int = 3
    load: Load = field(default_factory=Load)
    probes: int = 50
    memory: MemoryLoad = field(default_factory=MemoryLoad)

    def check(self) -> None:
        """Refuse what cannot be measured, before anything starts.

        Raises:
            CallerError: says what.
        """
        if not self.streams or min(self.streams) < 1:
            raise CallerError("--streams needs numbers from 1 on, with commas between them")


FULL: Final = Plan()
#: to see that it works, not to compare. The API's own numbers are up to half a second old, so a
#: window has to be longer, or there would be no step in it.
QUICK: Final = Plan(
    streams=(2,),
    rounds=1,
    load=Load(n_prompt=8, n_predict=4, seconds=2.0),
    probes=3,
    memory=MemoryLoad(requests=20, streams=2),
)


def run_serve(model: Path, plan: Plan, *, say: Callable[[str], None]) -> ServeReport:
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
    machine, ends = describe_machine(), end_tokens(model)
    say(f"starting {plan.stages} nodes on loopback, an engine and an API over them")
    with stage_nodes(plan.stages) as nodes:
        spec = _spec(model, plan, nodes)
        with EngineProcess(spec) as engine, _api(spec) as (port, pid):
            bench = _Bench(plan, nodes, engine, spec.parallel, port, pid, ends, say)
            bench.run()
    return ServeReport(machine, plan.load, plan.stages, bench.runs, bench.latency, bench.memory)


def _spec(model: Path, plan: Plan, nodes: LocalNodes) -> EngineSpec:
    """As many slots as there are streams at the most, in both arms, for all numbers of streams."""
    slots = max(*plan.streams, plan.memory.streams if plan.memory.requests else 1, 2)
    n_each = max(
        plan.load.n_prompt + plan.load.n_predict, plan.memory.n_prompt + plan.memory.n_predict
    )
    return EngineSpec(
        model=str(model),
        nodes=tuple(map(str, nodes.endpoints)),
        n_threads=1,
        parallel=slots,
        n_ctx=slots * math.ceil(n_each / _ROUND) * _ROUND,
    )


@contextmanager
def _api(spec: EngineSpec) -> Iterator[tuple[int, int]]:
    """A `ringline api` of the same engine: its port and its process."""
    port = free_port()
    command = [sys.executable, "-m", "ringline", "api", "-m", spec.model, "--host", HOST]
    command += ["--port", str(port), "--rpc", ",".join(spec.nodes), "-t", str(spec.n_threads)]
    command += ["--parallel", str(spec.parallel), "-c", str(spec.n_ctx)]
    with running(command, partial(healthy, port), name="ringline api") as pid:
        yield port, pid


class _Bench:
    """What has been measured so far."""

    def __init__(
        self,
        plan: Plan,
        nodes: LocalNodes,
        engine: EngineProcess,
        parallel: int,
        port: int,
        pid: int,
        ends: Sequence[int],
        say: Callable[[str], None],
    ) -> None:
        self._plan, self._nodes, self._engine, self._parallel = plan, nodes, engine, parallel
        self._port, self._pid, self._ends, self._say = port, pid, ends, say
        self._seed = 0
        self.runs: dict[int, tuple[list[Figures], list[Figures]]] = {
            streams: ([], []) for streams in plan.streams
        }
        self.latency: list[Latency] = []
        self.memory: list[Sample] = []

    def run(self) -> None:
        """Run all rounds, then the many requests."""
        self._fill()
        runs: list[tuple[str, Callable[[], None]]] = [
            (f"{streams} streams, {name}", partial(measure, streams))
            for streams in self._plan.streams
            for name, measure in (("bare", self._run_bare), ("API", self._run_api))
        ]
        runs.append(("small questions", self._run_probe))
        for number, (what, run) in enumerate(in_turns(runs, self._plan.rounds)):
            round_ = number // len(runs)
            self._say(f"round {round_ + 1} of {self._plan.rounds}: {what}")
            self._seed = round_  # both arms of a round get the same prompts
            run()
        memory = self._plan.memory
        if memory.requests:
            self._say(f"{memory.requests} requests, {memory.streams} at once")
            self.memory = measure_memory(self._pid, self._service(), memory, say=self._say)

    def _fill(self) -> None:
        """Let every slot of both arms have a text: a fresh engine is faster than one in use."""
        self._say(f"filling the slots of both arms, {self._parallel} each")
        load = replace(self._plan.load, seconds=0.0)
        for service in (BareService(self._engine, self._ends), self._service()):
            run_streams(service, self._parallel, load)

    def _service(self) -> ApiService:
        return ApiService(self._port, self._engine.about.facts.n_vocab, self._ends)

    def _run_bare(self, streams: int) -> None:
        def meters() -> Meters:
            steps = engine_steps(self._engine)
            return self._meters(0.0, tree_seconds(self._engine.pid), steps)

        service = BareService(self._engine, self._ends)
        load = self._plan.load
        figures = run_streams(service, streams, load, seed=self._seed, meters=meters)
        self.runs[streams][0].append(figures)

    def _run_api(self, streams: int) -> None:
        def meters() -> Meters:
            http = process_seconds(self._pid)
            steps = read_steps(self._port)
            return self._meters(http, tree_seconds(self._pid) - http, steps)

        load = self._plan.load
        figures = run_streams(self._service(), streams, load, seed=self._seed, meters=meters)
        self.runs[streams][1].append(figures)

    def _meters(self, http: float, engine: float, steps: tuple[float, float]) -> Meters:
        nodes = sum(map(tree_seconds, self._nodes.pids))
        return Meters(http, engine, nodes, time.process_time(), machine_seconds(), *steps)

    def _run_probe(self) -> None:
        """Ask small questions alone, then beside as many streams as are measured."""
        idle = Probe(self._port, self._plan.probes).result()
        probes: list[Probe] = []

        def meters() -> tuple[float, ...]:
            # Read at both ends of the window: it begins with the probe and ends not before it does.
            if probes:
                loaded.update(probes[0].result())
            else:
                probes.append(Probe(self._port, self._plan.probes))
            return ()

        loaded: dict[str, list[float]] = {}
        streams, load = max(self._plan.streams), self._plan.load
        try:
            run_streams(self._service(), streams, load, seed=self._seed, meters=meters)
        finally:
            for probe in probes:
                probe.close()
        self.latency.append(Latency(idle, loaded))
