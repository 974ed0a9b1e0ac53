"""Samplers on a node: made when they are first needed, asked for tokens, given back when closed.

The node holds a chain with its state for each text of a lane; here is only which is which. One
thread uses a lane at a time.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from ringline.errors import CallerError, LibraryError, NoTokenError, RemoteError, TransferError
from ringline.llama.choice import Choice, Wanted
from ringline.llama.logprobs import RowLogprobs
from ringline.llama.sampler import Sampler
from ringline.wire.sampling import (
    MOST_REASON,
    TOP,
    Sample,
    Sampled,
    SamplerFree,
    SamplerNew,
    Status,
    VocabularyPart,
    unpack_sampled,
)

if TYPE_CHECKING:
    from ringline.client.node import Node

__all__ = ["RemoteSamplers"]

_log = logging.getLogger(__name__)

#: bytes of a reply for each row: its token and logprob, or why its sampler is broken.
_MOST_OF_A_ROW: Final = 8 + 4 + MOST_REASON
#: bytes of a vocabulary in one message.
_PART: Final = 1 << 20


class RemoteSamplers:
    """The samplers of one lane on the node that has the logits."""

    def __init__(self, node: Node, n_vocab: int, vocabulary: Callable[[], bytes]) -> None:
        """Nothing is sent yet.

        Args:
            node: where the logits are.
            n_vocab: length of a row.
            vocabulary: makes the model's vocabulary as the node reads it; called at most once.
        """
        self._node = node
        self._n_vocab = n_vocab
        self._vocabulary: Callable[[], bytes] | None = vocabulary
        self._numbers: dict[Sampler, int] = {}
        self._next = 0
        self._step = 0
        self._answered = True

    def begin(self) -> None:
        """A step begins: what is chosen from now on is chosen anew, not asked for again."""
        self._step = (self._step + 1) % (1 << 31)

    def retry(self) -> None:
        """The step is decoded again: rows that the last try kept are forgotten.

        If the node has chosen already it will answer the same again, and nothing is forgotten.

        Raises:
            NetworkError, PeerError: the node failed.
        """
        if not self._answered:
            self._ask([], [], [])

    def choose(self, rows: Sequence[int], wanted: Sequence[Wanted]) -> list[Choice]:
        """Choose a token from each of some kept rows.

        Args:
            rows: their numbers.
            wanted: one for each.

        Raises:
            TransferError: the step failed on its way; it may be decoded again.
            NetworkError, PeerError: the node failed.
        """
        self._give_back()
        numbers = [self._number(one.sampler) for one in wanted]
        tops = [-1 if one.n_top is None else one.n_top for one in wanted]
        raw = self._ask(rows, numbers, tops)
        return [_choice(sampled) for sampled in unpack_sampled(raw, tops, self._n_vocab)]

    def _ask(self, rows: Sequence[int], numbers: Sequence[int], tops: Sequence[int]) -> bytes:
        request = Sample(self._step, rows, numbers, tops)
        most = sum(_MOST_OF_A_ROW + TOP.itemsize * max(0, top) for top in tops)
        self._answered = False
        raw = self._node.connection.call(request.COMMAND, request.pack(), size=None, most=most)
        self._answered = True
        return raw

    def _number(self, sampler: Sampler) -> int:
        """The node's number of a sampler, which is made if it is not there yet."""
        number = self._numbers.get(sampler)
        if number is None:
            if sampler.params.needs_vocabulary:
                self._bring_vocabulary()
            number = self._numbers[sampler] = self._next
            self._next += 1
            text = sampler.portable_params().as_json().encode()
            request = SamplerNew(number, text, sampler.seen)
            self._node.connection.post(request.COMMAND, request.pack())
        return number

    def _bring_vocabulary(self) -> None:
        """Send the vocabulary, once; a sampler that lacks it says so itself."""
        make, self._vocabulary = self._vocabulary, None
        if make is None:
            return
        data = memoryview(make())
        try:
            for start in range(0, len(data), _PART):
                last = start + _PART >= len(data)
                part = VocabularyPart(int(last), data[start : start + _PART])
                self._node.connection.call(part.COMMAND, part.pack(), size=1)
        except TransferError:  # of the step under way: the next try sends all of it again
            self._vocabulary = make
            raise
        except RemoteError as error:
            if self._node.connection.error is not None:
                raise
            _log.warning("node %s takes no vocabulary: %s", self._node.endpoint, error)

    def _give_back(self) -> None:
        """Free the samplers whose texts have ended."""
        for sampler in [sampler for sampler in self._numbers if sampler.closed]:
            request = SamplerFree(self._numbers.pop(sampler))
            self._node.connection.post(request.COMMAND, request.pack())


def _choice(sampled: Sampled) -> Choice:
    if sampled.token < 0:
        return Choice(error=_error(sampled))
    if sampled.logprob is None:
        return Choice(sampled.token)
    top = sampled.top
    return Choice(
        sampled.token, logprobs=RowLogprobs(sampled.logprob, top["token"], top["logprob"])
    )


def _error(sampled: Sampled) -> CallerError | LibraryError | NoTokenError:
    """What Sampler.choose would have raised here."""
    if sampled.token == Status.NO_TOKEN:
        return NoTokenError("the grammar or the logit bias allows no token here")
    if sampled.token == Status.NOT_NUMBERS:
        return LibraryError("the logits are not numbers (NaN): a device computed nonsense")
    return CallerError(f"the sampler cannot be used: {sampled.reason or 'the node lost it'}")
