"""A chat partner in this process: an engine over a ring, and the model's own chat template."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Sequence

from ringline.cli.chat_partner import Reply, Speed, Turn
from ringline.engine.engine import Engine
from ringline.engine.events import Outcome
from ringline.engine.generation import StopReason
from ringline.engine.job import Job, Request
from ringline.errors import RinglineError
from ringline.llama.chat_template import ChatTemplate

__all__ = ["EnginePartner"]

#: a stopped answer ends with the step under way; who presses Ctrl-C again does not wait for it.
_STOP_SECONDS = 30.0
_LIMITS = {
    StopReason.LIMIT: "cut off by -n",
    StopReason.CONTEXT_FULL: "the context is full: /reset begins anew, -c gives more",
    StopReason.CANCELLED: "stopped",
}


class EnginePartner:
    """An engine with a slot for this chat."""

    lasting = False

    def __init__(self, engine: Engine, request: Request) -> None:
        """Take an engine.

        Args:
            engine: of a model that continues texts.
            request: how each answer is chosen.
        """
        self._engine = engine
        self._template = ChatTemplate.of(engine.model)
        stop = (*request.stop, *self._template.stops)
        self._request = dataclasses.replace(request, stop=stop)

    def answer(self, turns: Sequence[Turn]) -> Reply:
        """Begin to answer; see Partner."""
        messages = [dataclasses.asdict(turn) for turn in turns]
        prompt = self._template.render(json.dumps({"messages": messages}))
        return _EngineReply(self._engine.submit_request(prompt, self._request))


class _EngineReply:
    def __init__(self, job: Job) -> None:
        self._job = job

    def __iter__(self) -> Iterator[str]:
        for piece in self._job:
            if piece.text:
                yield piece.text

    def stop(self) -> None:
        self._job.cancel()
        with contextlib.suppress(RinglineError, KeyboardInterrupt):
            self._job.result(_STOP_SECONDS)

    def speed(self) -> Speed:
        return _speed(self._job.result(0))


def _speed(outcome: Outcome) -> Speed:
    timings = outcome.timings
    return Speed(
        first_token=timings.first_token,
        n_tokens=len(outcome.ids),
        rate=1 / timings.per_token if timings.per_token else 0.0,
        n_prompt=outcome.n_prompt,
        n_reused=outcome.n_reused,
        limit=_LIMITS.get(outcome.stop_reason, ""),
    )
