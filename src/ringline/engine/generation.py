"""One prompt, run to its end over a context: prompt in chunks, then token by token. Seconds.

A context that is full ends the run: nothing is shifted out of it. Knows no nodes; a lost node comes
out of the context's decode as an exception.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from ringline.errors import CallerError
from ringline.llama.batch import Batch
from ringline.llama.choice import Choice, Wanted
from ringline.llama.context import Context
from ringline.llama.sampler import Sampler
from ringline.llama.text import StreamDecoder

__all__ = ["Generation", "PromptProgress", "StepObserver", "StopReason"]

#: takes the prompt's tokens decoded so far, and all of them.
PromptProgress = Callable[[int, int], None]


class StepObserver(Protocol):
    """Is told of each decode of one token; the prompt is none. A step that fails never stops."""

    def start(self) -> None:
        """A step begins."""

    def stop(self) -> None:
        """The step is over, its logits are here."""


class StopReason(StrEnum):
    """Why a run ended."""

    END = "end of text"
    LIMIT = "token limit"
    CONTEXT_FULL = "context full"
    STOP = "stop string"
    CANCELLED = "cancelled"


class Generation:
    """Iterate over it once: it yields pieces of text as they become whole.

    Args:
        context: decodes; nobody else uses it meanwhile. What `seq_id` held is forgotten.
        sampler: chooses the tokens; a fresh one for each run.
        prompt: tokens, at least one.
        n_predict: most tokens to generate; 0 decodes the prompt alone, a negative number goes on
            until the context is full.
        seq_id: the sequence of the context that is used.
        progress: called after each chunk of the prompt.
        special: whether control tokens are shown in the text.
        observer: is told of each step after the prompt.

    Attributes:
        prompt: the prompt's tokens.
        ids: tokens generated so far, without the one that ended the text.
        stop_reason: why it ended; None before that, and where the caller left early.
        prompt_seconds: time to decode the prompt and choose the first token.
        token_seconds: for each token after the first: time to decode and choose.

    Raises:
        CallerError: the prompt is empty, or longer than the context.
    """

    def __init__(
        self,
        context: Context,
        sampler: Sampler,
        prompt: Sequence[int],
        *,
        n_predict: int = -1,
        seq_id: int = 0,
        progress: PromptProgress | None = None,
        special: bool = False,
        observer: StepObserver | None = None,
    ) -> None:
        if not prompt:
            raise CallerError("the prompt is empty: it needs at least one token")
        if len(prompt) > context.n_ctx_seq:
            raise CallerError(
                f"the prompt has {len(prompt)} tokens and the context holds {context.n_ctx_seq}"
            )
        self.prompt = tuple(prompt)
        self.ids: list[int] = []
        self.stop_reason: StopReason | None = None
        self.prompt_seconds = 0.0
        self.token_seconds: list[float] = []
        self._context = context
        self._sampler = sampler
        self._n_predict = n_predict
        self._seq_id = seq_id
        self._progress = progress
        self._observer = observer
        self._decoder = StreamDecoder(context.model, special=special)
        self._batch = Batch(min(context.n_batch, len(prompt)))
        self._started = False

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, per second of decoding; 0 where there are none."""
        seconds = sum(self.token_seconds)
        return len(self.token_seconds) / seconds if seconds > 0 else 0.0

    @property
    def prompt_tokens_per_second(self) -> float:
        """Tokens of the prompt per second; 0 before it is decoded."""
        return len(self.prompt) / self.prompt_seconds if self.prompt_seconds > 0 else 0.0

    def __iter__(self) -> Iterator[str]:
        """Run, and yield text that is never empty and never ends in half a character.

        Raises:
            CallerError: it ran before, or libllama refuses a batch.
            Exception: what the context's decode raises.
        """
        if self._started:
            raise CallerError("a generation runs once: make another one")
        self._started = True
        return self._run()

    def _run(self) -> Iterator[str]:
        token = self._first_token()
        while self._n_predict != 0 and not self._ended_by(token):
            self.ids.append(token)
            piece = self._decoder.feed(token)
            if piece:
                yield piece
            if self._out_of_room():
                break
            token = self._next_token(token)
        if self._n_predict == 0:
            self.stop_reason = StopReason.LIMIT
        rest = self._decoder.flush()
        if rest:
            yield rest

    def _first_token(self) -> int:
        """Decode the prompt and choose the first token."""
        begin = time.perf_counter()
        self._context.seq_rm(self._seq_id)
        for token in self.prompt:
            self._sampler.accept(token)
        total, chunk = len(self.prompt), self._batch.capacity
        for start in range(0, total, chunk):
            tokens = self.prompt[start : start + chunk]
            done = start + len(tokens)
            choices = self._step(tokens, start, choose=done == total)
            if self._progress is not None:
                self._progress(done, total)
        token = choices[0].checked()
        self.prompt_seconds = time.perf_counter() - begin
        return token

    def _next_token(self, token: int) -> int:
        begin = time.perf_counter()
        if self._observer is not None:
            self._observer.start()
        choices = self._step((token,), len(self.prompt) + len(self.ids) - 1, choose=True)
        if self._observer is not None:
            self._observer.stop()
        following = choices[0].checked()
        self.token_seconds.append(time.perf_counter() - begin)
        return following

    def _step(self, tokens: Sequence[int], position: int, *, choose: bool) -> list[Choice]:
        """Decode tokens, and choose the one that follows the last of them if that is wanted."""
        self._batch.clear()
        index = self._batch.add_run(tokens, position, self._seq_id, logits_last=choose)
        wanted = [Wanted(index, self._sampler)] if choose else []
        return self._context.step(self._batch, wanted)

    def _ended_by(self, token: int) -> bool:
        if self._context.model.is_end(token):
            self.stop_reason = StopReason.END
            return True
        return False

    def _out_of_room(self) -> bool:
        if 0 <= self._n_predict <= len(self.ids):
            self.stop_reason = StopReason.LIMIT
        elif len(self.prompt) + len(self.ids) > self._context.n_ctx_seq:
            # The newest token is not in the cache yet: decoding it takes one more place.
            self.stop_reason = StopReason.CONTEXT_FULL
        return self.stop_reason is not None
