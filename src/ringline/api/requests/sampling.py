"""Fields that both APIs share: how tokens are chosen, and when a text ends.

Names are OpenAI's where it has one, else llama.cpp's; so are the defaults.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from ringline.api.errors import bad_request
from ringline.engine.job import MOST_LOGPROBS
from ringline.llama.parameters import RANDOM_SEED, SamplingParams

__all__ = ["MOST_CHOICES", "NOTHING", "GenerationFields", "StreamOptions", "most_logprobs"]

#: choices of one request, as OpenAI has it.
MOST_CHOICES: Final = 128
_MOST_STOPS: Final = 64
#: what the way to the engine has room for; some clients mean no limit by very many.
_MOST_TOKENS: Final = (1 << 63) - 1
#: fields of SamplingParams that a client gives under the same name.
_SAME: Final = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "top_n_sigma",
    "xtc_probability",
    "xtc_threshold",
    "repeat_penalty",
    "presence_penalty",
    "frequency_penalty",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
)

Bias = float | bool
#: a field of raw JSON that is not given, or null.
NOTHING: Final = msgspec.Raw(b"null")


class StreamOptions(msgspec.Struct, frozen=True):
    """What a stream tells beside the text."""

    include_usage: bool | None = None


class GenerationFields(msgspec.Struct, frozen=True, kw_only=True):
    """The fields; None: the default. Others than these and a body's own are ignored."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    max_tokens: int | None = None
    n_predict: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    top_n_sigma: float | None = None
    xtc_probability: float | None = None
    xtc_threshold: float | None = None
    repeat_penalty: float | None = None
    repeat_last_n: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: int | None = None
    dry_penalty_last_n: int | None = None
    dry_sequence_breakers: list[str] | None = None
    mirostat: int | None = None
    mirostat_tau: float | None = None
    mirostat_eta: float | None = None
    dynatemp_range: float | None = None
    dynatemp_exponent: float | None = None
    logit_bias: dict[str, Bias] | list[tuple[int, Bias]] | None = None
    ignore_eos: bool | None = None
    grammar: str | None = None
    json_schema: msgspec.Raw = NOTHING

    @property
    def wants_usage(self) -> bool:
        """Whether a stream ends with the numbers of tokens.

        Raises:
            ApiError: options of a stream are given for what is none.
        """
        if self.stream_options is not None and not self.stream:
            raise bad_request("stream_options is only allowed with stream: true", "stream_options")
        return bool(self.stream_options and self.stream_options.include_usage)

    @property
    def n_choices(self) -> int:
        """How many texts are wanted of each prompt.

        Raises:
            ApiError: none, or too many.
        """
        n = 1 if self.n is None else self.n
        if not 1 <= n <= MOST_CHOICES:
            raise bad_request(f"n is {n}: it must be from 1 to {MOST_CHOICES}", "n")
        return n

    @property
    def stops(self) -> tuple[str, ...]:
        """Strings that end the text.

        Raises:
            ApiError: too many, or one is empty.
        """
        stops = (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())
        if len(stops) > _MOST_STOPS:
            raise bad_request(f"stop has {len(stops)} strings: {_MOST_STOPS} are allowed", "stop")
        if "" in stops:
            raise bad_request("stop has an empty string: it would stop every text at once", "stop")
        return stops

    def limit(self, **more: int | None) -> int:
        """Most tokens of a text; -1: until it ends or the context is full.

        Args:
            more: the same by other names, which go first.

        Raises:
            ApiError: it is less than -1.
        """
        given = {**more, "max_tokens": self.max_tokens, "n_predict": self.n_predict}
        for name, limit in given.items():
            if limit is not None:
                if not -1 <= limit <= _MOST_TOKENS:
                    told = f"it must be from 0 to {_MOST_TOKENS}, or -1 for no limit"
                    raise bad_request(f"{name} is {limit}: {told}", name)
                return limit
        return -1

    def sampling(
        self, n_ctx: int, grammar: str | None, *, choice: int = 0, ends: Sequence[int] = ()
    ) -> SamplingParams:
        """How the tokens of a choice are chosen.

        Args:
            n_ctx: tokens of context of a request, what repeat_last_n -1 stands for.
            grammar: that the text keeps to.
            choice: its number: each choice of a seed has a seed of its own.
            ends: tokens that end a text, which ignore_eos forbids.

        Raises:
            CallerError: a value is out of range. ApiError: a bias names no token.
        """
        given = {name: value for name in _SAME if (value := getattr(self, name)) is not None}
        if self.repeat_last_n is not None:
            given["penalty_last_n"] = n_ctx if self.repeat_last_n == -1 else self.repeat_last_n
        if self.dry_sequence_breakers is not None:
            given["dry_sequence_breakers"] = tuple(self.dry_sequence_breakers)
        seed = None if self.seed in (None, -1) else (self.seed + choice) % RANDOM_SEED
        biases = _biases(self.logit_bias)
        if self.ignore_eos:
            biases |= dict.fromkeys(ends, -math.inf)
        return SamplingParams(**given, seed=seed, grammar=grammar, logit_bias=biases)


def most_logprobs(wanted: int | None, name: str) -> int | None:
    """Check how many of the likeliest tokens are wanted.

    Raises:
        ApiError: too many, or fewer than none.
    """
    if wanted is not None and not 0 <= wanted <= MOST_LOGPROBS:
        raise bad_request(f"{name} is {wanted}: it must be from 0 to {MOST_LOGPROBS}", name)
    return wanted


def _biases(given: dict[str, Bias] | list[tuple[int, Bias]] | None) -> dict[int, float]:
    pairs: Iterable[tuple[str | int, Bias]] = (
        given.items() if isinstance(given, dict) else given or ()
    )
    return {_token(token): _bias(bias) for token, bias in pairs}


def _token(name: str | int) -> int:
    try:
        token = int(name)
    except ValueError:
        token = -1
    if not 0 <= token <= _MOST_TOKENS:
        raise bad_request(f"logit_bias names {name!r}, which is no number of a token", "logit_bias")
    return token


def _bias(value: Bias) -> float:
    """False forbids a token, as in llama.cpp; True has no effect there."""
    if isinstance(value, bool):
        return 0.0 if value else -math.inf
    return value
