"""The samplers of one connection, and what they choose from its kept rows.

The chain itself is that of llama/, the same that a coordinator uses. What goes wrong with one
sampler is told in its place of the reply, for the others are other people's texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ringline.errors import LibraryError, NoTokenError, RefusedError, RinglineError
from ringline.llama.logprobs import row_logprobs
from ringline.llama.parameters import SamplingParams
from ringline.llama.sampler import Sampler
from ringline.server.kept_rows import KeptRows
from ringline.server.limits import MOST_SAMPLERS, MOST_TOP
from ringline.server.vocabulary import SessionVocabulary
from ringline.wire.sampling import TOP, Sample, Sampled, Status, pack_sampled

__all__ = ["Samplers"]

Row = NDArray[np.float32]


@dataclass(slots=True)
class _Entry:
    """One sampler: wanted, made, or broken.

    It may not be known how many tokens there are before the first row comes.
    """

    params: SamplingParams | None
    tokens: Sequence[int]
    sampler: Sampler | None = None
    reason: str = ""
    last: int | None = None

    def make(self, n_vocab: int, vocabulary: SessionVocabulary) -> None:
        """Make the sampler, or remember why it cannot be made."""
        if self.params is None or self.sampler is not None or self.reason:
            return
        try:
            self.sampler = Sampler(vocabulary.model, self.params, n_vocab=n_vocab)
            self.sampler.accept_all(self.tokens)
        except RinglineError as error:
            self.reason = str(error)
        self.tokens = ()

    def close(self) -> None:
        """Free it."""
        if self.sampler is not None:
            self.sampler.close()


class Samplers:
    """What a connection has for sampling; used by its thread alone.

    Attributes:
        rows: the rows of logits that were kept.
    """

    def __init__(self) -> None:
        self.rows = KeptRows()
        self._entries: dict[int, _Entry] = {}
        #: the last SAMPLE and its reply, for whoever asks again.
        self._number: int | None = None
        self._reply = b""

    def add(
        self, number: int, text: bytes, tokens: Sequence[int], vocabulary: SessionVocabulary
    ) -> None:
        """Take a sampler in, in the place of one that has its number.

        Args:
            number: its name.
            text: its parameters as JSON.
            tokens: what it has seen.
            vocabulary: the session's.

        Raises:
            RefusedError: there are too many.
        """
        self.free(number)
        if len(self._entries) >= MOST_SAMPLERS:
            raise RefusedError(
                f"this connection has {MOST_SAMPLERS} samplers already, more are not allowed",
                rule="limit-samplers",
            )
        self._entries[number] = entry = _wanted(text, tokens)
        width = self.rows.width if vocabulary.model is None else vocabulary.model.n_vocab
        if width is not None:
            entry.make(width, vocabulary)

    def free(self, number: int) -> None:
        """Forget a sampler; one that is unknown was forgotten before."""
        entry = self._entries.pop(number, None)
        if entry is not None:
            entry.close()

    def sample(self, request: Sample, vocabulary: SessionVocabulary) -> bytes:
        """Choose, and return the reply; the last request's number gets the last reply again.

        Raises:
            RefusedError: a row or a number that cannot be; nothing was chosen.
        """
        if not request.rows:
            # Nothing to choose: the rows of a step that failed are in the way.
            self.rows.clear()
            return b""
        if request.number != self._number:
            rows = [self.rows.row(number) for number in request.rows]
            _check(request)
            found = [
                self._choose(row, sampler, top, vocabulary)
                for row, sampler, top in zip(rows, request.samplers, request.tops, strict=True)
            ]
            self._number, self._reply = request.number, pack_sampled(found)
        # Also where it was asked before: a step that is decoded again keeps its rows again.
        self.rows.consume()
        return self._reply

    def _choose(self, row: Row, number: int, top: int, vocabulary: SessionVocabulary) -> Sampled:
        entry = self._entries.get(number)
        if entry is None:
            return Sampled(Status.UNKNOWN)
        entry.make(len(row), vocabulary)
        if entry.sampler is None:
            return Sampled(Status.BROKEN, reason=entry.reason)
        try:
            token = entry.sampler.choose(row)
        except NoTokenError:
            return Sampled(Status.NO_TOKEN)
        except LibraryError:
            return Sampled(Status.NOT_NUMBERS)
        except RinglineError as error:
            return Sampled(Status.BROKEN, reason=str(error))
        entry.last = token
        return Sampled(token) if top < 0 else _described(row, token, top)

    def last_token(self, number: int) -> int | None:
        """What a sampler chose last; None where it has not, or there is none."""
        entry = self._entries.get(number)
        return None if entry is None else entry.last

    def close(self) -> None:
        """Free all samplers and rows; may be called again."""
        for number in list(self._entries):
            self.free(number)
        self.rows.close()
        self._number, self._reply = None, b""


def _wanted(text: bytes, tokens: Sequence[int]) -> _Entry:
    try:
        return _Entry(SamplingParams.from_json(text), tokens)
    except RinglineError as error:
        return _Entry(None, (), reason=str(error))


def _check(request: Sample) -> None:
    for sampler in request.samplers:
        if sampler < 0:
            raise RefusedError(f"{sampler} is no number of a sampler")
    for top in request.tops:
        if not -1 <= top <= MOST_TOP:
            raise RefusedError(f"{top} of the likeliest tokens: 0 to {MOST_TOP} may be asked for")


def _described(row: Row, token: int, n_top: int) -> Sampled:
    found = row_logprobs(row, token, n_top)
    top = np.empty(len(found.ids), TOP)
    top["token"], top["logprob"] = found.ids, found.logprobs
    return Sampled(token, found.logprob, top)
