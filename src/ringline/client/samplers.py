"""Samplers on a node: made when they are first needed, asked for tokens, given back when closed.

The node holds one chain for each text of a lane, with its state; here is only which is which. One
thread uses a lane at a time.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from ringline.errors import CallerError, LibraryError, ProtocolError, RinglineError
from ringline.llama.sampler import Sampler
from ringline.wire.sampling import Sample, SamplerFree, SamplerNew, Status

if TYPE_CHECKING:
    from ringline.client.node import Node

__all__ = ["Choice", "RemoteSamplers"]

#: bytes of a reply beyond its tokens and logprobs: reasons why samplers are broken.
_MOST_REASONS: Final = 64 * 1024
_PAIR: Final = struct.Struct("<if")
_LENGTH: Final = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Choice:
    """What a sampler chose from one row.

    Attributes:
        token: the token; -1 where there is none.
        error: why there is none.
        logprob: of the token, where it was asked for.
        likeliest: the likeliest tokens and their logprobs, as many as were asked for.
    """

    token: int
    error: RinglineError | None = None
    logprob: float | None = None
    likeliest: tuple[tuple[int, float], ...] = ()


class RemoteSamplers:
    """The samplers of one lane on the node that has the logits."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self._numbers: dict[int, Sampler] = {}
        self._known: dict[Sampler, int] = {}
        self._next = 0
        self._step = 0
        self._answered = True

    def begin(self) -> None:
        """A step begins: what is chosen from now on is chosen anew, not asked for again."""
        self._step = (self._step + 1) % (1 << 31)

    def retry(self) -> None:
        """The step is decoded again: rows that were kept by the last try are forgotten.

        Where the node has chosen already it answers the same again, and nothing is forgotten.

        Raises:
            NetworkError, PeerError: the node failed.
        """
        if not self._answered:
            self._ask([], [], [])
            self.begin()

    def choose(
        self, rows: Sequence[int], samplers: Sequence[Sampler], tops: Sequence[int | None]
    ) -> list[Choice]:
        """Choose a token from each of the rows that the node keeps.

        Args:
            rows: numbers of kept rows.
            samplers: one for each.
            tops: how many of the likeliest tokens are wanted beside it; None: no logprobs at all.

        Raises:
            TransferError: the step failed on its way; it may be decoded again.
            NetworkError, PeerError: the node failed.
        """
        self._give_back()
        numbers = [self._number(sampler) for sampler in samplers]
        wanted = [-1 if top is None else top for top in tops]
        return _read(self._ask(rows, numbers, wanted), wanted)

    def _ask(self, rows: Sequence[int], numbers: Sequence[int], tops: Sequence[int]) -> bytes:
        request = Sample(self._step, tuple(rows), tuple(numbers), tuple(tops))
        most = sum(4 + (_PAIR.size * (1 + top) if top >= 0 else 0) for top in tops)
        self._answered = False
        raw = self.node.connection.call(
            request.COMMAND, request.pack(), size=None, most=most + _MOST_REASONS
        )
        self._answered = True
        return raw

    def _number(self, sampler: Sampler) -> int:
        """The node's number of a sampler, which is made if it is not there yet."""
        number = self._known.get(sampler)
        if number is None:
            number, self._next = self._next, self._next + 1
            request = SamplerNew(number, sampler.portable_params(), sampler.history)
            self.node.connection.post(request.COMMAND, request.pack())
            self._known[sampler] = number
        return number

    def _give_back(self) -> None:
        """Free the samplers whose texts have ended."""
        for sampler in [sampler for sampler in self._known if sampler.closed]:
            request = SamplerFree(self._known.pop(sampler))
            self.node.connection.post(request.COMMAND, request.pack())
