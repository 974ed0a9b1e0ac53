"""What the page shows of a ring: rates from an engine's counters, and what is left of a lost one.

Pure: no clock, no socket. The time between two looks is the difference of their uptimes, so a look
that is shown twice counts once. Bytes, seconds, tokens; a share is 0 to 1.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from ringline.api.state import Condition, EngineState
from ringline.engine.metrics import EngineMetrics, Histogram, SlotMetrics, Summary
from ringline.engine.placement import Stage
from ringline.engine.ring_metrics import EdgeMetrics, StageMetrics

__all__ = ["EdgeView", "RingView", "StageView", "Viewer"]

#: tokens and bytes are averaged over so many seconds, shares over the longer time: a node tells how
#: busy it was every few seconds only, and single steps should not make a bar jump.
_RATE_SECONDS: Final = 1.8
_SHARE_SECONDS: Final = 5.0
#: a latency is that of the requests that ended so lately.
_LATENCY_SECONDS: Final = 10.0
_MOST_LOOKS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    """A stage as it is drawn.

    Attributes:
        index, node, device, first_layer, n_layers, has_output: see StageMetrics; n_layers None: no
            engine has told yet.
        weight_bytes, kv_bytes, memory_free, memory_total: the same.
        busy_share, wait_share, lock_share: of the last seconds; None: unknown.
        state: ok, lost, unknown (no figures), or waiting (for an engine).
        why: the sentence, where it is lost.
    """

    index: int
    node: str
    device: str = ""
    first_layer: int = 0
    n_layers: int | None = None
    has_output: bool = False
    weight_bytes: int = 0
    kv_bytes: int = 0
    memory_free: int = 0
    memory_total: int = 0
    busy_share: float | None = None
    wait_share: float | None = None
    lock_share: float | None = None
    state: str = "waiting"
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeView:
    """An edge as it is drawn; see EdgeMetrics. `bytes` is the counter."""

    source: int
    target: int
    path: str
    fell_back: bool
    bytes: int
    bytes_per_second: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RingView:
    """All that one `ring` event says.

    Attributes:
        state, why: of the engine: starting, ready, lost, stopping.
        loading: share of the model that is loaded; None where none is being loaded.
        model: its name and kind; "" before it is known.
        uptime: of the engine.
        tokens_per_second, prompt_tokens_per_second: generated, and read.
        ttft, tpot: of the many requests that ended last.
        ttft_lately, tpot_lately: means of those that ended in the last seconds; None: none did.
        queued: requests that wait for a slot.
        kv_used, kv_total, kv_share: tokens in the caches of all slots.
        stages, edges, slots: the ring; edges are empty without an engine.
    """

    state: str
    why: str = ""
    loading: float | None = None
    model: str = ""
    uptime: float = 0.0
    tokens_per_second: float = 0.0
    prompt_tokens_per_second: float = 0.0
    ttft: Summary = field(default_factory=Summary)
    tpot: Summary = field(default_factory=Summary)
    ttft_lately: float | None = None
    tpot_lately: float | None = None
    queued: int = 0
    kv_used: int = 0
    kv_total: int = 0
    kv_share: float | None = None
    stages: list[StageView] = field(default_factory=list)
    edges: list[EdgeView] = field(default_factory=list)
    slots: list[SlotMetrics] = field(default_factory=list)


class Viewer:
    """Makes views of looks that come one after the other; remembers the last seconds' looks."""

    def __init__(self, nodes: Sequence[str] = ()) -> None:
        """Begin without a look.

        Args:
            nodes: endpoints of the ring, shown until an engine says which stages they hold.
        """
        self._looks: deque[EngineMetrics] = deque(maxlen=_MOST_LOOKS)
        self._stages = [StageView(index=i, node=node) for i, node in enumerate(nodes)]
        self._cause = ""

    def view(
        self,
        state: EngineState,
        metrics: EngineMetrics | None,
        *,
        model: str = "",
        plan: Sequence[Stage] = (),
    ) -> RingView:
        """What is to be shown now.

        Args:
            state: of the engine.
            metrics: its newest counters; None where there is no engine.
            model: its name.
            plan: stages of the engine that ran last, for a viewer who has not seen it run.
        """
        loading = state.loaded if state.condition is Condition.STARTING else None
        start = RingView(state=state.condition, why=state.why, loading=loading, model=model)
        if metrics is None or state.condition is Condition.LOST:
            self._looks.clear()
            return replace(start, stages=self._remains(state, plan))
        self._note(metrics)
        self._cause = ""
        self._stages = [self._stage(i, stage) for i, stage in enumerate(metrics.stages)]
        return self._running(start, metrics)

    def _running(self, start: RingView, metrics: EngineMetrics) -> RingView:
        then, seconds = self._before(_RATE_SECONDS)
        earlier, _ = self._before(_LATENCY_SECONDS)
        total = metrics.kv_total_tokens
        return replace(
            start,
            uptime=metrics.uptime,
            tokens_per_second=_rate(metrics.generated_tokens, then.generated_tokens, seconds),
            prompt_tokens_per_second=_rate(metrics.prompt_tokens, then.prompt_tokens, seconds),
            ttft=metrics.ttft,
            tpot=metrics.tpot,
            ttft_lately=_mean_since(metrics.ttft_histogram, earlier.ttft_histogram),
            tpot_lately=_mean_since(metrics.tpot_histogram, earlier.tpot_histogram),
            queued=metrics.queued,
            kv_used=metrics.kv_used_tokens,
            kv_total=total,
            kv_share=metrics.kv_used_tokens / total if total else None,
            stages=self._stages,
            edges=[_edge(edge, then, seconds) for edge in metrics.edges],
            slots=metrics.slots,
        )

    def _note(self, metrics: EngineMetrics) -> None:
        """Keep a look; one of another engine begins anew, one that is known is not kept twice."""
        if self._looks and metrics.uptime < self._looks[-1].uptime:
            self._looks.clear()
        if not self._looks or metrics.uptime > self._looks[-1].uptime:
            self._looks.append(metrics)

    def _before(self, seconds: float) -> tuple[EngineMetrics, float]:
        """The newest look that is so old, or else the oldest; and how long ago that was."""
        now = self._looks[-1].uptime
        found = self._looks[0]
        for look in self._looks:
            if now - look.uptime < seconds:
                break
            found = look
        return found, now - found.uptime

    def _stage(self, place: int, stage: StageMetrics) -> StageView:
        look, seconds = self._before(_SHARE_SECONDS)
        then = look.stages[place] if place < len(look.stages) else stage
        # Before a node has told anything its counters are 0: no share is known from there.
        told = stage.state == "ok" and seconds > 0 and then.computations > 0

        def share(now: float, before: float) -> float | None:
            return min(1.0, _rate(now, before, seconds)) if told else None

        return StageView(
            index=stage.index,
            node=stage.node,
            device=stage.device,
            first_layer=stage.first_layer,
            n_layers=stage.n_layers,
            has_output=stage.has_output,
            weight_bytes=stage.weight_bytes,
            kv_bytes=stage.kv_bytes,
            memory_free=stage.memory_free,
            memory_total=stage.memory_total,
            busy_share=share(stage.busy_seconds, then.busy_seconds),
            wait_share=share(stage.wait_seconds, then.wait_seconds),
            lock_share=share(stage.lock_wait_seconds, then.lock_wait_seconds),
            state=stage.state,
            why=stage.why,
        )

    def _remains(self, state: EngineState, plan: Sequence[Stage]) -> list[StageView]:
        """The stages of an engine that is gone; what its end names is lost until another runs.

        While it is started again nothing is known of the cause's end, so the cause stays.
        """
        if state.condition is Condition.LOST:
            self._cause = state.why
        if plan and all(stage.n_layers is None for stage in self._stages):
            self._stages = _planned(plan)
        self._stages = [_without_engine(stage, self._cause) for stage in self._stages]
        return self._stages


def names(sentence: str, node: str) -> bool:
    """Whether a sentence is about a node: its whole endpoint stands there."""
    if not node:
        return False
    return re.search(rf"(?<![\w.:-]){re.escape(node)}(?![\w-]|\.\w)", sentence) is not None


def _without_engine(stage: StageView, cause: str) -> StageView:
    lost = names(cause, stage.node)
    return replace(
        stage,
        busy_share=None,
        wait_share=None,
        lock_share=None,
        state="lost" if lost else "waiting",
        why=cause if lost else "",
    )


def _planned(plan: Sequence[Stage]) -> list[StageView]:
    """Stages of a plan. Where its layers begin is not said there: it counts the output as one."""
    found, first = [], 0
    for index, stage in enumerate(plan):
        last = index == len(plan) - 1
        n_layers = max(0, stage.n_layers - last)
        found.append(
            StageView(
                index=index,
                node=stage.endpoint,
                device=stage.device,
                first_layer=first,
                n_layers=n_layers,
                has_output=last,
            )
        )
        first += stage.n_layers
    return found


def _edge(edge: EdgeMetrics, look: EngineMetrics, seconds: float) -> EdgeView:
    before = {(then.source, then.target): then.bytes for then in look.edges}
    then = before.get((edge.source, edge.target), edge.bytes)
    return EdgeView(
        source=edge.source,
        target=edge.target,
        path=edge.path,
        fell_back=edge.fell_back,
        bytes=edge.bytes,
        bytes_per_second=_rate(edge.bytes, then, seconds),
    )


def _mean_since(now: Histogram, then: Histogram) -> float | None:
    """The mean of the values that came between two looks."""
    came = sum(now.counts) - sum(then.counts)
    return (now.total - then.total) / came if came > 0 else None


def _rate(now: float, then: float, seconds: float) -> float:
    """What came a second; a counter that went back belongs to something new."""
    return max(0.0, now - then) / seconds if seconds > 0 else 0.0
