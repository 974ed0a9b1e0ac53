"""Many prompts at once: each text is written when it is finished, behind its number."""

from __future__ import annotations

import json
import queue
import time
from collections.abc import Sequence
from typing import Any

from ringline.cli.talk import say
from ringline.engine.engine import Engine
from ringline.engine.events import Event, Failure, Outcome, Piece, Sink
from ringline.engine.job import Request
from ringline.engine.metrics import EngineMetrics
from ringline.errors import CallerError

__all__ = ["generate_many"]


def generate_many(
    engine: Engine, prompts: Sequence[str], request: Request, *, as_json: bool
) -> None:
    """Continue all prompts, and say how fast it went.

    Args:
        engine: with nothing else to do.
        prompts: texts.
        request: what is wanted of each.
        as_json: print one list at the end, in the order of the prompts, instead of texts.

    Raises:
        RinglineError: a prompt does not fit, or a node failed.
    """
    say(engine.capacity.describe())
    begin = time.monotonic()
    outcomes = _run(engine, prompts, request, quiet=as_json)
    _say_speed(engine.metrics(), time.monotonic() - begin)
    if as_json:
        report = [_report(number, outcomes[number]) for number in sorted(outcomes)]
        print(json.dumps(report, ensure_ascii=False))


def _run(
    engine: Engine, prompts: Sequence[str], request: Request, *, quiet: bool
) -> dict[int, Outcome]:
    """Run all prompts; what came of each, by its number, which counts from 1."""
    ends: queue.SimpleQueue[tuple[int, Outcome | Failure]] = queue.SimpleQueue()

    def sink(number: int) -> Sink:
        def tell(event: Event) -> None:
            if not isinstance(event, Piece):
                ends.put((number, event))

        return tell

    for number, prompt in enumerate(prompts, start=1):
        try:
            engine.submit_request(prompt, request, sink=sink(number))
        except CallerError as error:
            raise CallerError(f"prompt {number}: {error}") from None
    outcomes: dict[int, Outcome] = {}
    while len(outcomes) < len(prompts):
        number, end = ends.get()
        if isinstance(end, Failure):
            raise end.error
        outcomes[number] = end
        if not quiet:
            print(f"[{number}] {end.text}", flush=True)
    return outcomes


def _say_speed(metrics: EngineMetrics, seconds: float) -> None:
    say(
        f"{metrics.submitted} prompts, {metrics.prompt_tokens + metrics.reused_tokens} tokens; "
        f"generated {metrics.generated_tokens} tokens, "
        f"{metrics.generated_tokens / seconds:.1f} tok/s; "
        f"first token after {metrics.ttft.median:.2f} s (p95 {metrics.ttft.p95:.2f} s), "
        f"then {1000 * metrics.tpot.median:.1f} ms each (p95 {1000 * metrics.tpot.p95:.1f} ms)"
    )


def _report(number: int, outcome: Outcome) -> dict[str, Any]:
    return {
        "prompt": number,
        "text": outcome.text,
        "ids": list(outcome.ids),
        "prompt_tokens": outcome.n_prompt,
        "reused_tokens": outcome.n_reused,
        "stop_reason": outcome.stop_reason,
        "queued_seconds": outcome.timings.queued,
        "first_token_seconds": outcome.timings.first_token,
        "seconds_per_token": outcome.timings.per_token,
    }
