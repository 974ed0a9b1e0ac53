"""Choosing the next token from a row of logits: libllama's own chain of samplers.

A row is all that a sampler needs, so it works the same where a context decoded the row and where
the row is kept without one. See chain.py for the order.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from ringline.errors import CallerError, LibraryError, NoTokenError
from ringline.interrupts import deliver, held
from ringline.llama.candidates import candidates
from ringline.llama.chain import Chain, Links
from ringline.llama.library import libllama
from ringline.llama.model import Model
from ringline.llama.parameters import RANDOM_SEED, SamplingParams

__all__ = ["Sampler", "SamplingParams"]


class Sampler:
    """A chain of samplers with its state (what was seen, the random numbers, the grammar).

    One text has one sampler, and one thread at a time uses it. Close it, or use it as a context
    manager; one that is forgotten frees its memory when it is collected.

    Attributes:
        params: how it chooses.
        n_vocab: how many logits a row has.
    """

    def __init__(
        self, model: Model | None, params: SamplingParams, *, n_vocab: int | None = None
    ) -> None:
        """Build the chain.

        Args:
            model: the model whose vocabulary the tokens come from; the sampler must not outlive it.
                None where it is not at hand; then `n_vocab` is given.
            params: how to choose.
            n_vocab: number of tokens; None for the model's.

        Raises:
            CallerError: the grammar is wrong, a biased token is not in the vocabulary, or the
                parameters need a vocabulary and there is none.
            LibraryError: llama-cpp-python is missing or has another version.
        """
        self.params = params
        self.n_vocab = _vocabulary_size(model, n_vocab)
        self._library = libllama()
        self._seed = secrets.randbelow(RANDOM_SEED) if params.seed is None else params.seed
        # The grammar's link points into the vocabulary.
        self._model = model
        links = Links(self._library, model, self.n_vocab, params, self._seed)
        self._allowing = Chain(self._library, links.allowing())
        self._seeing = Chain(self._library, links.seeing())
        self._choosing = Chain(self._library, links.choosing())
        self._reach = links.reach()
        #: whether the likeliest token of the row as it is will be the choice.
        self._plain = params.greedy and not self._allowing and not self._seeing
        self._closed = False
        #: what was accepted and may be looked back at, for another sampler that goes on from here.
        self.seen: tuple[int, ...] = ()

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def portable_params(self) -> SamplingParams:
        """The parameters with the seed that was drawn: elsewhere they choose the same tokens."""
        return replace(self.params, seed=self._seed)

    def close(self) -> None:
        """Free the chain and its links; a second call does nothing."""
        self._closed = True
        for chain in self._chains():
            chain.close()

    def _chains(self) -> tuple[Chain, Chain, Chain]:
        return self._allowing, self._seeing, self._choosing

    def __enter__(self) -> Sampler:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def seed(self) -> int | None:
        """The seed in use, also where it was drawn; None where nothing is random."""
        self._require_open()
        return None if self.params.greedy else self._seed

    def _require_open(self) -> None:
        if self._closed:
            raise CallerError("the sampler is closed")

    def choose(self, logits: NDArray[np.float32]) -> int:
        """Choose a token, and count it as seen.

        Args:
            logits: the row, [n_vocab] f32; it is not changed.

        Raises:
            NoTokenError: the grammar or the bias allows no token; nothing was counted.
            CallerError: the sampler is closed, or the row has another length.
            LibraryError: the logits are not numbers; nothing was counted.
        """
        self._require_open()
        if len(logits) != self.n_vocab:
            raise CallerError(
                f"a row of {len(logits)} logits is none of a vocabulary of {self.n_vocab} tokens"
            )
        # NaN propagates through max(); a greedy choice would take token 0 and say nothing.
        if not np.isfinite(logits.max()):
            raise LibraryError("the logits are not numbers (NaN): a device computed nonsense")
        if self._plain:
            return int(logits.argmax())
        return self._choose_by_chain(logits)

    def _choose_by_chain(self, logits: NDArray[np.float32]) -> int:
        """Apply the chain, as llama_sampler_sample does, but look at what is allowed before.

        Where the grammar forbids all tokens, that function chooses one of them, and libllama
        answers with a C++ exception when the grammar has to accept it: the end of the process.
        """
        library, found = self._library, candidates(self.n_vocab)
        found.fill(logits)
        if self._allowing:
            with held():
                library.llama_sampler_apply(self._allowing.address, found.array)
        if self._allowing or logits.min() == -np.inf:
            found.drop_forbidden()
        if not len(found):
            deliver()
            raise NoTokenError(self._why_none())
        with held():
            library.llama_sampler_apply(self._seeing.address, found.array)
            library.llama_sampler_apply(self._choosing.address, found.array)
            token = found.chosen
            for chain in self._chains():
                library.llama_sampler_accept(chain.address, token)
        deliver()
        return token

    def _why_none(self) -> str:
        who = "grammar" if self.params.grammar is not None else "logit bias"
        return f"the {who} allows no token here"

    def accept(self, token: int) -> None:
        """Count a token as seen for the penalties and DRY: one of the prompt.

        The grammar does not see it: it governs what is generated. What sample() chose is counted
        already.
        """
        self.accept_all((token,))

    def accept_all(self, tokens: Sequence[int]) -> None:
        """Count tokens as seen, in order; costs nothing where nothing looks back."""
        self._require_open()
        if not self._reach:
            return
        self.seen = (*self.seen, *tokens)[-self._reach :]
        with held():
            for token in tokens[-self._reach :]:
                self._library.llama_sampler_accept(self._seeing.address, token)
        deliver()


def _vocabulary_size(model: Model | None, n_vocab: int | None) -> int:
    size = model.n_vocab if model is not None and n_vocab is None else n_vocab
    if size is None or size < 1:
        raise CallerError(f"a sampler needs the size of the vocabulary, 1 or more, not {size}")
    if model is not None and model.n_vocab != size:
        raise CallerError(f"a vocabulary of {model.n_vocab} tokens has no rows of {size} logits")
    return size
