"""Long prompts over a ring: how fast one is alone, and how long the others wait because of it.

A prompt goes through the stages in pieces, one behind the other: over two stages it takes the time
of half of the layers, and one piece more. Seconds and tokens.
"""

from __future__ import annotations

import random
import statistics
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Final

from ringline.bench.cells import never_ending, open_engine
from ringline.client.edge import Path
from ringline.engine.engine import Engine
from ringline.engine.events import Event, Piece
from ringline.engine.local_nodes import LocalNodes
from ringline.errors import EngineError

__all__ = ["Delay", "PromptLoad", "measure_delay", "time_prompt"]

#: for one answer; a prompt of some thousand tokens on a busy machine takes a while.
_PATIENCE: Final = 600.0
_GROUPS: Final = 2


@dataclass(frozen=True, slots=True)
class PromptLoad:
    """Which prompts are measured.

    Attributes:
        n_prompt: tokens of the prompt that is timed alone.
        n_long: tokens of the prompt that arrives while others are decoding.
        n_before: tokens that those have generated then.
        repeat: how often each time is taken in a round; the shortest counts.
    """

    n_prompt: int = 448
    n_long: int = 2000
    n_before: int = 24
    repeat: int = 3


@dataclass(frozen=True, slots=True)
class Delay:
    """What a long prompt did to the streams beside it.

    Attributes:
        longest: seconds between two tokens of a stream while the prompt was decoded, the longest.
        usual: the same before the prompt came, the median.
        step: seconds of one step that is as large as the budget, alone, at the end of the prompt:
            attention makes it longer than one at its beginning.
    """

    longest: float
    usual: float
    step: float

    @property
    def in_steps(self) -> float:
        """By how much the token was late, in steps."""
        return (self.longest - self.usual) / self.step


def time_prompt(
    nodes: LocalNodes,
    model: FilePath,
    load: PromptLoad,
    *,
    stages: int,
    seed: int,
    even: bool = False,
) -> float:
    """Seconds from a prompt to its first token.

    Args:
        nodes: at least as many as there are stages.
        model: a GGUF file.
        load: which prompt.
        stages: how many nodes are used; 0: this CPU, one thread.
        seed: of the prompt.
        even: whether all stages have as many layers. A prompt needs the output matrix for its last
            token alone, so the default split, which is made for texts, is not its best.

    Raises:
        RinglineError: a node failed, or the model cannot be loaded.
    """
    with open_engine(
        nodes,
        model,
        stages=stages,
        path=Path.RENDEZVOUS,
        groups=1,
        parallel=1,
        n_ctx_each=load.n_prompt + 1,
        tensor_split=[1.0] * stages if even else (),
    ) as engine:
        return _first_token(engine, load.n_prompt, random.Random(seed), load.repeat)


def measure_delay(nodes: LocalNodes, model: FilePath, load: PromptLoad, *, seed: int) -> Delay:
    """Let a long prompt arrive beside one stream in each of two groups, over two stages.

    Raises:
        RinglineError: a node failed, or the model cannot be loaded.
    """
    draw = random.Random(seed)
    with open_engine(
        nodes,
        model,
        stages=2,
        path=Path.RENDEZVOUS,
        groups=_GROUPS,
        parallel=2 * _GROUPS,
        n_ctx_each=load.n_long + load.n_before,
    ) as engine:
        long = _prompt(engine, load.n_long, draw)
        step = _last_step(engine, long, load.repeat)
        streams = [_Watched(engine, load.n_before) for _ in range(_GROUPS)]
        for stream in streams:
            stream.wait()
        arrived = time.monotonic()
        job = engine.submit(_prompt(engine, load.n_long, draw), n_predict=1)
        job.result(_PATIENCE)
        over = time.monotonic()
        for stream in streams:
            stream.job.cancel()
    before = [gap for stream in streams for gap in stream.gaps(0.0, arrived)]
    during = [gap for stream in streams for gap in stream.gaps(arrived, over)]
    if not before or not during:
        raise EngineError("a stream had no token beside the prompt: its context is too short")
    return Delay(max(during), statistics.median(before), step)


class _Watched:
    """A stream that goes on until it is cancelled, and when its tokens came."""

    def __init__(self, engine: Engine, n_before: int) -> None:
        self._times: list[float] = []
        self._n_before = n_before
        self._warm = threading.Event()
        self.job = engine.submit([1], sampling=never_ending(engine.model), sink=self._take)

    def _take(self, event: Event) -> None:
        if isinstance(event, Piece):
            self._times.extend([time.monotonic()] * len(event.ids))
        if not isinstance(event, Piece) or len(self._times) >= self._n_before:
            self._warm.set()

    def wait(self) -> None:
        """Wait for the first tokens.

        Raises:
            EngineError: they did not come.
        """
        self._warm.wait(_PATIENCE)
        if len(self._times) < self._n_before:
            raise EngineError(f"a stream ended after {len(self._times)} tokens")

    def gaps(self, begin: float, end: float) -> list[float]:
        """Seconds between neighbouring tokens of which the second came within these moments."""
        times: Sequence[float] = self._times[:]
        return [b - a for a, b in pairwise(times) if begin <= b < end and b > a]


def _first_token(engine: Engine, n_prompt: int, draw: random.Random, repeat: int) -> float:
    """The shortest of some times; the first run, in which libllama makes its graphs, is none."""
    seconds = []
    for _ in range(repeat + 1):
        job = engine.submit(_prompt(engine, n_prompt, draw), n_predict=1)
        seconds.append(job.result(_PATIENCE).timings.first_token)
    return min(seconds[1:])


def _last_step(engine: Engine, prompt: list[int], repeat: int) -> float:
    """The shortest time to decode the last `budget` tokens behind a prompt that is in the cache."""
    short = len(prompt) - engine.limits.budget
    engine.submit(prompt[:short], n_predict=1).result(_PATIENCE)
    seconds = []
    for place in range(repeat + 1):
        # Another first token behind the cached part, or the last run's would be used again.
        prompt[short] = place
        job = engine.submit(prompt, n_predict=1)
        seconds.append(job.result(_PATIENCE).timings.first_token)
    return min(seconds[1:])


def _prompt(engine: Engine, count: int, draw: random.Random) -> list[int]:
    return draw.choices(range(engine.model.n_vocab), k=count)
