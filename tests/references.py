"""What a prompt says alone on this CPU, where that is beyond doubt.

ggml may round the last bit of a row otherwise when it computes several at once, and a quantised row
may then take another step. A text changes where its two likeliest tokens are as good as equal; such
texts are no reference.
"""

from __future__ import annotations

from collections.abc import Sequence

from ringline.engine.engine import Engine

#: by how much the logprob of the likeliest token has to exceed that of the next one.
MARGIN = 0.01


def clear_ids(engine: Engine, prompt: Sequence[int], n_predict: int) -> list[int] | None:
    """The ids of an engine that decodes nothing else; None where a choice was a close one."""
    outcome = engine.submit(prompt, n_predict=n_predict, logprobs=2).result()
    gaps = [entry.top[0].logprob - entry.top[1].logprob for entry in outcome.logprobs]
    return list(outcome.ids) if min(gaps, default=1.0) >= MARGIN else None
