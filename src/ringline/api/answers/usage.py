"""Counts and times at the end of an answer, and words for why a text ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ringline.engine.events import Outcome
from ringline.engine.generation import StopReason

__all__ = ["FINISH", "timings", "usage"]

#: OpenAI's words.
FINISH: Final[Mapping[StopReason, str]] = {
    StopReason.END: "stop",
    StopReason.STOP: "stop",
    StopReason.LIMIT: "length",
    StopReason.CONTEXT_FULL: "length",
    StopReason.CANCELLED: "stop",
}


def usage(outcomes: Mapping[int, Outcome], n_choices: int) -> dict[str, object]:
    """Tokens of a request; a prompt counts once, however many choices it has.

    Args:
        outcomes: by number of the choice, all of them.
        n_choices: of each prompt.
    """
    firsts = [outcome for index, outcome in outcomes.items() if index % n_choices == 0]
    n_prompt = sum(outcome.n_prompt for outcome in firsts)
    n_cached = sum(outcome.n_reused for outcome in firsts)
    n_done = sum(len(outcome.ids) for outcome in outcomes.values())
    return {
        "prompt_tokens": n_prompt,
        "completion_tokens": n_done,
        "total_tokens": n_prompt + n_done,
        "prompt_tokens_details": {"cached_tokens": n_cached},
    }


def timings(outcomes: Mapping[int, Outcome]) -> dict[str, float]:
    """llama.cpp's `timings`, of the first choice; milliseconds."""
    outcome = outcomes[min(outcomes)]
    times, n_done = outcome.timings, len(outcome.ids)
    n_new = outcome.n_prompt - outcome.n_reused
    prompt = max(0.0, (times.first_token or times.total) - times.queued)
    predicted = times.per_token * (n_done - 1) if n_done > 1 else 0.0
    return {
        "queued_ms": 1000 * times.queued,
        "cache_n": outcome.n_reused,
        "prompt_n": n_new,
        "prompt_ms": 1000 * prompt,
        "prompt_per_token_ms": 1000 * prompt / n_new if n_new else 0.0,
        "prompt_per_second": n_new / prompt if prompt else 0.0,
        "predicted_n": n_done,
        "predicted_ms": 1000 * predicted,
        "predicted_per_token_ms": 1000 * times.per_token,
        "predicted_per_second": 1 / times.per_token if times.per_token else 0.0,
    }
