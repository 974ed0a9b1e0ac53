"""The answer of /v1/completions, whole and as events."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ringline.api.answers.head import DONE, Head, event
from ringline.api.answers.logprobs import CompletionLogprobs
from ringline.api.answers.usage import FINISH, timings, usage
from ringline.engine.events import Outcome, Piece

__all__ = ["CompletionAnswer"]

_encode = msgspec.json.Encoder().encode


class CompletionAnswer:
    """Makes the answer of one request from what its jobs tell."""

    closing = DONE

    def __init__(
        self, head: Head, *, n_choices: int, wants_logprobs: bool, wants_usage: bool
    ) -> None:
        """Begin an answer.

        Args:
            head: what all its objects share.
            n_choices: of each prompt.
            wants_logprobs: whether each text comes with them.
            wants_usage: whether a stream ends with counts.
        """
        self._head = head
        self._n_choices = n_choices
        self._wants_logprobs = wants_logprobs
        self._wants_usage = wants_usage
        self._opening = head.opening()
        self._end = b'],"usage":null}\n\n' if wants_usage else b"]}\n\n"
        self._logprobs: dict[int, CompletionLogprobs] = {}

    def begin(self, count: int) -> bytes:
        """The events before any text: none."""
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        """The event of a piece of text."""
        logprobs = b"null"
        if self._wants_logprobs:
            shaper = self._logprobs.setdefault(index, CompletionLogprobs())
            logprobs = _encode(shaper.shape(piece.logprobs))
        return b'%b{"text":%b,"index":%d,"logprobs":%b,"finish_reason":null}%b' % (
            self._opening,
            _encode(piece.text),
            index,
            logprobs,
            self._end,
        )

    def end(self, index: int, outcome: Outcome) -> bytes:
        """The event of a text's end."""
        return b'%b{"text":"","index":%d,"logprobs":null,"finish_reason":%b}%b' % (
            self._opening,
            index,
            _encode(FINISH[outcome.stop_reason]),
            self._end,
        )

    def last(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """The event with the counts, if it is wanted."""
        if not self._wants_usage:
            return b""
        return event({**self._head.members(), "choices": [], **self._totals(outcomes)})

    def whole(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """The answer as one object."""
        choices = [
            {
                "text": outcome.text,
                "index": index,
                "logprobs": CompletionLogprobs().shape(outcome.logprobs)
                if self._wants_logprobs
                else None,
                "finish_reason": FINISH[outcome.stop_reason],
            }
            for index, outcome in sorted(outcomes.items())
        ]
        return _encode({**self._head.members(), "choices": choices, **self._totals(outcomes)})

    def _totals(self, outcomes: Mapping[int, Outcome]) -> dict[str, object]:
        return {"usage": usage(outcomes, self._n_choices), "timings": timings(outcomes)}
