"""The links of a chain of samplers, in llama.cpp's order, and the chain that owns them.

    logit bias, grammar            what may be chosen at all
    penalties, DRY                 what was seen before
    top-n-sigma, top-k, typical, top-p, min-p, XTC, temperature, draw

Where the likeliest token is taken, the last line is nothing but that. With Mirostat only the first
line, the temperature and Mirostat's own draw are left, as in llama.cpp.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Final

from ringline.errors import CallerError
from ringline.llama.gbnf import check_grammar
from ringline.llama.log import collected_errors, quote
from ringline.llama.model import Model
from ringline.llama.parameters import SamplingParams

__all__ = ["Chain", "Links"]

#: Mirostat estimates from so many of the likeliest tokens (common/sampling.cpp).
_MIROSTAT_TOKENS: Final = 100
#: DRY looks back so far where a model does not say what context it was trained for.
_DRY_CONTEXT: Final = 4096
_FURTHEST: Final = 1 << 20


class Chain:
    """A llama_sampler chain. Freed when it is closed, or forgotten."""

    def __init__(self, library: ModuleType, links: Iterator[Any]) -> None:
        self._library = library
        self.links: list[Any] = []
        self.address: Any = library.llama_sampler_chain_init(
            library.llama_sampler_chain_default_params()
        )
        # Also frees the links. At exit the system takes all back anyway.
        self._free = weakref.finalize(self, library.llama_sampler_free, self.address)
        self._free.atexit = False
        for link in links:
            library.llama_sampler_chain_add(self.address, link)
            self.links.append(link)

    def __len__(self) -> int:
        return len(self.links)

    @property
    def alive(self) -> bool:
        """Whether its memory has not been freed."""
        return bool(self._free.alive)

    def close(self) -> None:
        """Free the chain and its links; a second call does nothing."""
        self.links = []
        self._free()


@dataclass(frozen=True, slots=True)
class Links:
    """Makes the links of one sampler.

    Attributes:
        library: libllama.
        model: whose vocabulary the tokens come from; None where it is not at hand.
        n_vocab: how many tokens there are.
        params: how to choose.
        seed: of all that is random.
    """

    library: ModuleType
    model: Model | None
    n_vocab: int
    params: SamplingParams
    seed: int

    def allowing(self) -> Iterator[Any]:
        """What may be chosen at all.

        Raises:
            CallerError: the grammar is wrong, or a biased token is not in the vocabulary.
        """
        if self.params.logit_bias:
            yield self._logit_bias()
        if self.params.grammar is not None:
            yield self._grammar(self.params.grammar)

    def seeing(self) -> Iterator[Any]:
        """What depends on the tokens that were seen.

        Raises:
            CallerError: there is no vocabulary for DRY's sequence breakers.
        """
        params = self.params
        if params.penalizes:
            yield self.library.llama_sampler_init_penalties(
                self.n_vocab,
                params.penalty_last_n,
                params.repeat_penalty,
                params.frequency_penalty,
                params.presence_penalty,
            )
        if params.dries:
            yield self._dry()

    def reach(self) -> int:
        """How many tokens back anything looks."""
        params = self.params
        penalties = params.penalty_last_n if params.penalizes else 0
        return max(penalties, self._dry_reach() if params.dries else 0)

    def choosing(self) -> Iterator[Any]:
        """What leaves out tokens, and at last chooses one."""
        library, params = self.library, self.params
        if params.greedy:
            yield library.llama_sampler_init_greedy()
            return
        if params.mirostat:
            yield library.llama_sampler_init_temp(params.temperature)
            yield self._mirostat()
            return
        yield library.llama_sampler_init_top_n_sigma(params.top_n_sigma)
        yield library.llama_sampler_init_top_k(params.top_k)
        yield library.llama_sampler_init_typical(params.typical_p, 1)
        yield library.llama_sampler_init_top_p(params.top_p, 1)
        yield library.llama_sampler_init_min_p(params.min_p, 1)
        yield library.llama_sampler_init_xtc(
            params.xtc_probability, params.xtc_threshold, 1, self.seed
        )
        yield library.llama_sampler_init_temp_ext(
            params.temperature, params.dynatemp_range, params.dynatemp_exponent
        )
        yield library.llama_sampler_init_dist(self.seed)

    def _logit_bias(self) -> Any:
        bias, n_vocab = self.params.logit_bias, self.n_vocab
        outside = [token for token in bias if not 0 <= token < n_vocab]
        if outside:
            raise CallerError(
                f"logit_bias names token {outside[0]}, which is not in the vocabulary of "
                f"{n_vocab} tokens"
            )
        entries = (self.library.llama_logit_bias * len(bias))(*bias.items())
        return self.library.llama_sampler_init_logit_bias(n_vocab, len(bias), entries)

    def _grammar(self, grammar: str) -> Any:
        check_grammar(grammar)
        vocab = self._vocabulary("a grammar").vocab
        text = grammar.encode("utf-8", "replace")
        with collected_errors() as errors:
            link = self.library.llama_sampler_init_grammar(vocab, text, b"root")
        if not link:
            raise CallerError(f"the grammar cannot be used: {quote(errors)}")
        return link

    def _dry(self) -> Any:
        params = self.params
        model = self._vocabulary("DRY")
        texts = [text.encode("utf-8", "replace") for text in params.dry_sequence_breakers]
        return self.library.llama_sampler_init_dry(
            model.vocab,
            params.dry_multiplier,
            params.dry_base,
            params.dry_allowed_length,
            self._dry_reach(),
            (ctypes.c_char_p * len(texts))(*texts),
            len(texts),
        )

    def _dry_reach(self) -> int:
        chosen = self.params.dry_penalty_last_n
        return _trained_context(self._vocabulary("DRY")) if chosen < 0 else chosen

    def _mirostat(self) -> Any:
        params = self.params
        if params.mirostat == 2:
            return self.library.llama_sampler_init_mirostat_v2(
                self.seed, params.mirostat_tau, params.mirostat_eta
            )
        return self.library.llama_sampler_init_mirostat(
            self.n_vocab, self.seed, params.mirostat_tau, params.mirostat_eta, _MIROSTAT_TOKENS
        )

    def _vocabulary(self, who: str) -> Model:
        if self.model is None:
            raise CallerError(f"{who} needs the model's vocabulary, which is not known here")
        return self.model


def _trained_context(model: Model) -> int:
    """Read it from the metadata: a model without weights has it there alone."""
    text = model.metadata(f"{model.metadata('general.architecture')}.context_length")
    n_tokens = int(text) if text is not None and text.isdecimal() else _DRY_CONTEXT
    return max(1, min(n_tokens, _FURTHEST))
