"""Whether an engine still works: it answers, its steps end, its nodes are there. Seconds."""

from __future__ import annotations

import asyncio
from typing import Final

from ringline.engine.metrics import EngineMetrics
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.questions import AskMetrics, Metrics
from ringline.errors import EngineError, RinglineError
from ringline.settings import reply_timeout

__all__ = ["asked_metrics", "trouble_of"]

#: so many looks in the time after which an engine counts as hung.
_LOOKS: Final = 6


async def asked_metrics(engine: EngineProcess, seconds: float) -> EngineMetrics | None:
    """Ask for metrics; None: no answer came within `seconds`, or the engine has ended."""
    try:
        answer = asyncio.wrap_future(engine.ask(AskMetrics, Metrics))
        return (await asyncio.wait_for(answer, seconds)).metrics
    except (TimeoutError, RinglineError):
        return None


async def trouble_of(engine: EngineProcess, limit: float) -> RinglineError:
    """Watch an engine until something is wrong that no job of it tells; what it is.

    A step may take longer than `limit`: it waits for nodes, and they have a deadline of their own,
    whose error names them. Only what outlives that deadline too is a hang. A node that is lost is
    told by the step that needs it; where there is none, it is seen here before somebody asks.

    Args:
        engine: to be watched.
        limit: seconds without an answer.
    """
    longest = reply_timeout() + limit
    while True:
        await asyncio.sleep(limit / _LOOKS)
        metrics = await asked_metrics(engine, limit)
        if metrics is None:
            return EngineError(f"the engine has not answered for {limit:g} s: it hangs")
        for number, group in enumerate(metrics.groups):
            if group.step_seconds > longest:
                return EngineError(
                    f"group {number} of the engine has been in one step for {longest:g} s: it hangs"
                )
        lost = next((stage.why for stage in metrics.stages if stage.state == "lost"), None)
        if lost is not None and not any(group.busy_slots for group in metrics.groups):
            return EngineError(lost)
