"""Cells of `ringline bench groups`: an engine over nodes of our own, under closed-loop streams.

The nodes stay up for the whole measurement; each cell connects, loads and leaves. Seconds, tokens.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import Final

from ringline.bench.cpu import machine_seconds, tree_seconds
from ringline.bench.streams import Figures, Load, Request, run_streams
from ringline.client.edge import Path
from ringline.engine.engine import Engine
from ringline.engine.events import Event, Failure, Piece
from ringline.engine.job import Job
from ringline.engine.local_nodes import LocalNodes
from ringline.engine.ring import Ring
from ringline.engine.task import TaskState
from ringline.errors import EngineError
from ringline.llama.model import Model
from ringline.llama.sampler import SamplingParams
from ringline.net.tls import PLAIN

__all__ = ["Cell", "EngineService", "measure_cell", "never_ending", "open_engine", "stage_nodes"]

#: libllama rounds the context of a sequence up to a multiple of this.
_ROUND: Final = 256


@dataclass(frozen=True, slots=True)
class Cell:
    """One way to run.

    Attributes:
        groups, streams, stages: how many.
        path: of the hidden states.
        switch_ms: milliseconds after which Python's threads take turns; None: as Python has it.
    """

    groups: int
    streams: int
    stages: int
    path: Path
    switch_ms: float | None = None

    def __str__(self) -> str:
        """The cell in words."""
        words = f"{self.groups} groups, {self.streams} streams, {self.stages} stages, {self.path}"
        return words if self.switch_ms is None else f"{words}, switch {self.switch_ms:g} ms"


def stage_nodes(count: int) -> LocalNodes:
    """Nodes of one thread each: where two stages share a machine, neither takes the other's."""
    return LocalNodes(count, n_threads=1)


@contextmanager
def open_engine(
    nodes: LocalNodes,
    model: FilePath,
    *,
    stages: int,
    path: Path,
    groups: int,
    parallel: int,
    n_ctx_each: int,
    n_ubatch: int | None = None,
    tensor_split: Sequence[float] = (),
) -> Iterator[Engine]:
    """An engine over the first `stages` nodes; none: over this machine's CPU, one thread.

    Args:
        nodes: at least as many as there are stages.
        model: a GGUF file.
        stages: how many nodes are used.
        path: the best path of a hidden state.
        groups: contexts.
        parallel: slots in all; at least one for each group is made.
        n_ctx_each: tokens of context of each slot.
        n_ubatch: most tokens of a piece; None: the engine's default.
        tensor_split: each stage's share of the layers; empty: the default.

    Raises:
        RinglineError: a node failed, or the model cannot be loaded.
    """
    slots = max(parallel, groups)
    n_ctx = slots * math.ceil(n_ctx_each / _ROUND) * _ROUND
    with (
        Ring(nodes.endpoints[:stages], path=path, tls=PLAIN) as ring,
        ring.place(model, n_ctx=n_ctx, n_threads=1, tensor_split=tensor_split) as placed,
        Engine(
            ring, placed, parallel=slots, groups=groups, n_ctx=n_ctx, n_ubatch=n_ubatch
        ) as engine,
    ):
        yield engine


def measure_cell(
    cell: Cell, nodes: LocalNodes, model: FilePath, load: Load, *, seed: int
) -> Figures:
    """Run a cell once. The meters are processors: of each stage, of this process, of everybody.

    Raises:
        RinglineError: a node failed, or the model cannot be loaded.
    """
    pids = nodes.pids[: cell.stages]

    def meters() -> list[float]:
        return [*map(tree_seconds, pids), time.process_time(), machine_seconds()]

    with (
        _switching(cell.switch_ms),
        open_engine(
            nodes,
            model,
            stages=cell.stages,
            path=cell.path,
            groups=cell.groups,
            parallel=cell.streams,
            n_ctx_each=load.n_prompt + load.n_predict,
        ) as engine,
    ):
        service = EngineService(engine)
        return run_streams(service, cell.streams, load, seed=seed, meters=meters)


@contextmanager
def _switching(milliseconds: float | None) -> Iterator[None]:
    """Let Python's threads take turns after so long while the block runs."""
    before = sys.getswitchinterval()
    try:
        if milliseconds is not None:
            sys.setswitchinterval(milliseconds / 1000)
        yield
    finally:
        sys.setswitchinterval(before)


def never_ending(model: Model) -> SamplingParams:
    """Greedy, without the tokens that end a text: every answer is as long as it was asked for."""
    ends = {token: -math.inf for token in range(model.n_vocab) if model.is_end(token)}
    return SamplingParams(temperature=0.0, logit_bias=ends)


class EngineService:
    """An engine of this process as a Service of streams."""

    live = True

    def __init__(self, engine: Engine) -> None:
        self.n_vocab = engine.model.n_vocab
        self._engine = engine
        self._sampling = never_ending(engine.model)
        # Guards _jobs and _stopped.
        self._lock = threading.Lock()
        self._jobs: set[Job] = set()
        self._stopped = False

    def ask(self, prompt: Sequence[int], n_predict: int, request: Request) -> bool:
        """Submit a job and wait for its end; as Service.ask."""
        ended = threading.Event()
        failures: list[Failure] = []

        def sink(event: Event) -> None:
            if isinstance(event, Piece):
                request.tokens.extend([time.monotonic()] * len(event.ids))
                return
            if isinstance(event, Failure):
                failures.append(event)
            ended.set()

        with self._lock:
            if self._stopped:
                return False
            job = self._engine.submit(
                prompt, n_predict=n_predict, sampling=self._sampling, sink=sink
            )
            self._jobs.add(job)
        ended.wait()
        with self._lock:
            self._jobs.discard(job)
        if failures:
            raise failures[0].error
        if job.state is TaskState.DONE and len(request.tokens) != n_predict:
            raise EngineError(f"{len(request.tokens)} tokens came where {n_predict} were asked for")
        return job.state is TaskState.DONE

    def stop(self) -> None:
        """Cancel all jobs; as Service.stop."""
        with self._lock:
            self._stopped = True
            jobs = list(self._jobs)
        for job in jobs:
            job.cancel()
