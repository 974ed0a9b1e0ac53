"""The answer of /completion in llama.cpp's shape, whole and as events."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from ringline.api.answers.head import event
from ringline.api.answers.logprobs import ChatLogprobs
from ringline.api.answers.usage import timings
from ringline.api.choices import Wish
from ringline.engine.events import Outcome, Piece, TokenLogprob
from ringline.engine.generation import StopReason
from ringline.llama.parameters import RANDOM_SEED

__all__ = ["NativeAnswer"]

_STOP_TYPES: Final = {
    StopReason.END: "eos",
    StopReason.STOP: "word",
    StopReason.LIMIT: "limit",
    StopReason.CONTEXT_FULL: "limit",
    StopReason.CANCELLED: "none",
}


class NativeAnswer:
    """Makes the answer of one request from what its jobs tell."""

    #: llama.cpp's own streams end with the event that says `"stop": true`.
    closing = b""

    def __init__(self, model: str, wishes: Sequence[Wish], *, returns_tokens: bool) -> None:
        """Begin an answer.

        Args:
            model: the model's name.
            wishes: what was asked for, by number of the choice.
            returns_tokens: whether the whole text's tokens are told.
        """
        self._model = model
        self._wishes = wishes
        self._returns_tokens = returns_tokens
        self._n_done = [0] * len(wishes)

    def begin(self, count: int) -> bytes:
        """The events before any text: none."""
        return b""

    def piece(self, index: int, piece: Piece) -> bytes:
        """The event of a piece of text."""
        self._n_done[index] += len(piece.ids)
        return event(
            {
                "index": index,
                "content": piece.text,
                "tokens": piece.ids,
                "stop": False,
                "tokens_predicted": self._n_done[index],
                **self._probabilities(index, piece.logprobs),
            }
        )

    def end(self, index: int, outcome: Outcome) -> bytes:
        """The event of a text's end."""
        return event({**self._result(index, outcome), "content": "", "tokens": []})

    def last(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """Nothing comes after the ends of all texts."""
        return b""

    def whole(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """The answer: one object, or a list where several texts were asked for."""
        results = [
            {
                **self._result(index, outcome),
                **self._probabilities(index, outcome.logprobs),
            }
            for index, outcome in sorted(outcomes.items())
        ]
        return msgspec.json.encode(results[0] if len(results) == 1 else results)

    def _result(self, index: int, outcome: Outcome) -> dict[str, object]:
        return {
            "index": index,
            "content": outcome.text,
            "tokens": outcome.ids if self._returns_tokens else [],
            "stop": True,
            "model": self._model,
            "tokens_predicted": len(outcome.ids),
            "tokens_evaluated": outcome.n_prompt,
            "tokens_cached": outcome.n_prompt + len(outcome.ids),
            "generation_settings": self._settings(index),
            "prompt": self._wishes[index].prompt,
            "has_new_line": "\n" in outcome.text,
            "truncated": outcome.stop_reason is StopReason.CONTEXT_FULL,
            "stop_type": _STOP_TYPES[outcome.stop_reason],
            "stopping_word": outcome.stop or "",
            "timings": timings({index: outcome}),
        }

    def _settings(self, index: int) -> dict[str, object]:
        request = self._wishes[index].request
        sampling = dataclasses.asdict(request.sampling)
        bias = [{"token": token, "bias": bias} for token, bias in sampling["logit_bias"].items()]
        return {
            **sampling,
            "logit_bias": bias,
            "seed": RANDOM_SEED if request.sampling.seed is None else request.sampling.seed,
            "n_predict": request.n_predict,
            "max_tokens": request.n_predict,
            "n_probs": request.logprobs or 0,
            "stop": request.stop,
        }

    def _probabilities(self, index: int, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        if self._wishes[index].request.logprobs is None:
            return {}
        return {"completion_probabilities": ChatLogprobs.shape(entries)["content"]}
