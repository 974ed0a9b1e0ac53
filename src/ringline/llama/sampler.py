"""Choosing the next token from a row of logits: libllama's own chain of samplers.

The order is llama.cpp's: logit bias, grammar, penalties, top-k, top-p, min-p, temperature, draw.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ringline.errors import CallerError, LibraryError
from ringline.interrupts import deliver, held
from ringline.llama.context import Context
from ringline.llama.library import libllama
from ringline.llama.log import collected_errors, quote
from ringline.llama.model import Model

__all__ = ["Sampler", "SamplingParams"]

#: llama.h, LLAMA_DEFAULT_SEED: libllama draws a seed itself.
_RANDOM_SEED = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to choose; the defaults are llama.cpp's.

    Attributes:
        temperature: 0 or less takes the likeliest token, always; higher is more random.
        top_k: only the k likeliest tokens; 0 or less for all.
        top_p: only the likeliest tokens that together have this probability; 1 for all.
        min_p: only tokens with this share of the likeliest one's probability; 0 for all.
        repeat_penalty: divides the logit of a token seen before; 1 for none.
        frequency_penalty: subtracted for each time that the token was seen; 0 for none.
        presence_penalty: subtracted where the token was seen at all; 0 for none.
        penalty_last_n: how many tokens back count as seen; 0 switches the penalties off.
        logit_bias: token -> what is added to its logit; -inf forbids it.
        seed: 0 .. 2^32 - 2; None draws one.
        grammar: a grammar in GBNF whose start symbol is `root`; None for any text.
    """

    temperature: float = 0.8
    top_k: int = 40
    top_p: float = 0.95
    min_p: float = 0.05
    repeat_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    penalty_last_n: int = 64
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    grammar: str | None = None

    def __post_init__(self) -> None:
        numbers = ("temperature", "frequency_penalty", "presence_penalty")
        for name in numbers:
            if not math.isfinite(getattr(self, name)):
                raise CallerError(f"{name} is {getattr(self, name)}: it must be a finite number")
        for name in ("top_p", "min_p"):
            if not 0 <= getattr(self, name) <= 1:
                raise CallerError(f"{name} is {getattr(self, name)}: it must be from 0 to 1")
        if not (math.isfinite(self.repeat_penalty) and self.repeat_penalty > 0):
            raise CallerError(f"repeat_penalty is {self.repeat_penalty}: it must be above 0")
        if self.penalty_last_n < 0:
            raise CallerError(f"penalty_last_n is {self.penalty_last_n}: it must be 0 or more")
        if self.seed is not None and not 0 <= self.seed < _RANDOM_SEED:
            raise CallerError(f"seed {self.seed} is not from 0 to {_RANDOM_SEED - 1}")
        if any(math.isnan(bias) or bias == math.inf for bias in self.logit_bias.values()):
            raise CallerError("a logit bias must be a number, or -inf to forbid the token")

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature <= 0


class Sampler:
    """A chain of samplers with its state (what was seen, the random numbers, the grammar).

    One text has one sampler. Close it, or use it as a context manager; one that is forgotten frees
    its memory when it is collected.
    """

    def __init__(self, model: Model, params: SamplingParams) -> None:
        """Build the chain.

        Args:
            model: the model whose vocabulary the tokens come from; the sampler must not outlive it.
            params: how to choose.

        Raises:
            CallerError: the grammar is wrong, or a biased token is not in the vocabulary.
        """
        self.params = params
        self._model = model
        self._library = libllama()
        self._penalties: Any = None
        self._chain: Any = self._library.llama_sampler_chain_init(
            self._library.llama_sampler_chain_default_params()
        )
        # Also frees the links. At exit the system takes all back anyway.
        self._free = weakref.finalize(self, self._library.llama_sampler_free, self._chain)
        self._free.atexit = False
        for link in self._links(model, params):
            self._library.llama_sampler_chain_add(self._chain, link)

    def _links(self, model: Model, params: SamplingParams) -> Iterator[Any]:
        library = self._library
        if params.logit_bias:
            yield self._logit_bias(model, params.logit_bias)
        if params.grammar is not None:
            yield self._grammar(model, params.grammar)
        self._penalties = library.llama_sampler_init_penalties(
            model.n_vocab,
            params.penalty_last_n,
            params.repeat_penalty,
            params.frequency_penalty,
            params.presence_penalty,
        )
        yield self._penalties
        if params.greedy:
            yield library.llama_sampler_init_greedy()
            return
        yield library.llama_sampler_init_top_k(params.top_k)
        yield library.llama_sampler_init_top_p(params.top_p, 1)
        yield library.llama_sampler_init_min_p(params.min_p, 1)
        yield library.llama_sampler_init_temp(params.temperature)
        yield library.llama_sampler_init_dist(_RANDOM_SEED if params.seed is None else params.seed)

    def _logit_bias(self, model: Model, bias: Mapping[int, float]) -> Any:
        outside = [token for token in bias if not 0 <= token < model.n_vocab]
        if outside:
            raise CallerError(
                f"logit bias for token {outside[0]}, which is not in the vocabulary of "
                f"{model.n_vocab} tokens"
            )
        entries = (self._library.llama_logit_bias * len(bias))(*bias.items())
        return self._library.llama_sampler_init_logit_bias(model.n_vocab, len(bias), entries)

    def _grammar(self, model: Model, grammar: str) -> Any:
        if not grammar.strip():
            raise CallerError("the grammar is empty")
        with collected_errors() as errors:
            link = self._library.llama_sampler_init_grammar(model.vocab, grammar.encode(), b"root")
        if not link:
            raise CallerError(f"the grammar cannot be used: {quote(errors)}")
        return link

    def close(self) -> None:
        """Free the chain and its links; a second call does nothing."""
        self._chain = self._penalties = None
        self._free()

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
        seed = int(self._library.llama_sampler_get_seed(self._open_chain()))
        return None if seed == _RANDOM_SEED else seed

    def _open_chain(self) -> Any:
        if self._chain is None:
            raise CallerError("the sampler is closed")
        return self._chain

    def sample(self, context: Context, index: int = -1) -> int:
        """Choose the token that follows one of the last batch, and count it as seen.

        Args:
            context: the context that decoded the batch.
            index: the token's index in the batch; -1 is the last one that asked for logits.

        Raises:
            CallerError: that token did not ask for logits, or the grammar allows no token.
            LibraryError: the logits are not numbers.
        """
        chain = self._open_chain()
        logits = context.logits(index)
        # NaN propagates through max(); a greedy choice would take token 0 and say nothing.
        if np.isnan(logits.max()):
            raise LibraryError("the logits are not numbers (NaN): a device computed nonsense")
        if self.params.grammar is None:
            with held():
                token = int(self._library.llama_sampler_sample(chain, context.handle, index))
            deliver()
            return token
        return self._sample_by_grammar(chain, logits)

    def _sample_by_grammar(self, chain: Any, logits: NDArray[np.float32]) -> int:
        """Apply the chain and look at its choice before the grammar has to accept it.

        llama_sampler_sample would accept a token that the grammar forbids, where it forbids all,
        and libllama answers that with a C++ exception: the end of the process.
        """
        data = np.zeros(len(logits), [("id", np.int32), ("logit", np.float32), ("p", np.float32)])
        data["id"] = np.arange(len(logits))
        data["logit"] = logits
        pointer = data.ctypes.data_as(self._library.llama_token_data_p)
        array = self._library.llama_token_data_array(pointer, len(data), -1, False)
        self._library.llama_sampler_apply(chain, ctypes.byref(array))
        chosen = array.data[array.selected]
        if not math.isfinite(chosen.logit):
            raise CallerError("the grammar allows no token here")
        self._library.llama_sampler_accept(chain, chosen.id)
        return int(chosen.id)

    def accept(self, token: int) -> None:
        """Count a token as seen for the penalties: one of the prompt.

        The grammar does not see it: it governs what is generated. What sample() chose is counted
        already.
        """
        self._open_chain()
        self._library.llama_sampler_accept(self._penalties, token)
