"""How a token is chosen: the parameters of sampling as one value, and as text for another process.

Names and defaults are llama.cpp's (common/common.h, common_params_sampling). A value that was made
is in range: of what comes from a peer, `from_json` believes nothing.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from ringline.errors import CallerError

__all__ = ["RANDOM_SEED", "SamplingParams"]

#: llama.h, LLAMA_DEFAULT_SEED: libllama would draw a seed itself.
RANDOM_SEED: Final = 0xFFFFFFFF
#: the largest f32: C would make infinity of what is beyond.
_F32: Final = 3.4028234663852886e38
#: no sampler looks back further; libllama makes room for so many tokens at once.
_FURTHEST: Final = 1 << 20
_I32: Final = (1 << 31) - 1
_MOST_BREAKERS: Final = 64
#: libllama cuts off what is longer, bytes.
_LONGEST_BREAKER: Final = 40

_ANY: Final = (-_F32, _F32, "it must be a finite number")
_SHARE: Final = (0.0, 1.0, "it must be from 0 to 1")
_POSITIVE: Final = (0.0, _F32, "it must be 0 or more, and finite")
#: field -> its lowest value, its highest, and what to say of others.
_RANGES: Final[dict[str, tuple[float, float, str]]] = {
    "temperature": _ANY,
    "dynatemp_range": _POSITIVE,
    "dynatemp_exponent": _POSITIVE,
    "top_k": (-_I32, _I32, "it must be a number of 32 bits"),
    "top_p": _SHARE,
    "min_p": _SHARE,
    "typical_p": _SHARE,
    "top_n_sigma": _ANY,
    "xtc_probability": _SHARE,
    "xtc_threshold": _SHARE,
    "repeat_penalty": (1e-37, _F32, "it must be above 0"),
    "frequency_penalty": _ANY,
    "presence_penalty": _ANY,
    "penalty_last_n": (0, _FURTHEST, f"it must be from 0 to {_FURTHEST}"),
    "dry_multiplier": _POSITIVE,
    "dry_base": _POSITIVE,
    "dry_allowed_length": (0, _FURTHEST, f"it must be from 0 to {_FURTHEST}"),
    "dry_penalty_last_n": (-1, _FURTHEST, f"it must be from 0 to {_FURTHEST}, or -1"),
    "mirostat": (0, 2, "it must be 0, 1 or 2"),
    "mirostat_tau": _POSITIVE,
    "mirostat_eta": _POSITIVE,
}
#: what people know a field by, where that is another name.
_CALLED: Final = {"penalty_last_n": "repeat_last_n"}


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
        typical_p: only tokens about as surprising as can be expected here, that together have
            this probability; 1 for all.
        top_n_sigma: only tokens whose logit is at most so many standard deviations below the
            highest; 0 or less for all.
        xtc_probability: how often all but the least likely of the tokens above `xtc_threshold`
            are left out; 0 for never.
        xtc_threshold: probability that makes a token such a one; above 0.5 there are none.
        dry_multiplier: strength of DRY, which is subtracted from the logit of a token that would go
            on repeating what was seen; 0 switches it off.
        dry_base: the subtraction grows by this factor with each token of the repetition; below 1
            switches DRY off.
        dry_allowed_length: repetitions up to this length cost nothing.
        dry_penalty_last_n: how many tokens back repetitions are looked for; 0 switches DRY off,
            -1 stands for the context that the model was trained for.
        dry_sequence_breakers: texts that no repetition goes across.
        mirostat: 1 or 2 chooses by Mirostat of that version. Then, as in llama.cpp, only the
            temperature, the bias, the grammar and the seed have an effect beside it.
        mirostat_tau: the surprise that Mirostat aims at, bits a token.
        mirostat_eta: how fast Mirostat learns.
        dynatemp_range: the temperature varies by so much to both sides, with the entropy of the
            choice; 0 for a constant one.
        dynatemp_exponent: how the entropy is mapped to that range.
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
    typical_p: float = 1.0
    top_n_sigma: float = -1.0
    xtc_probability: float = 0.0
    xtc_threshold: float = 0.1
    dry_multiplier: float = 0.0
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = -1
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    dynatemp_range: float = 0.0
    dynatemp_exponent: float = 1.0

    def __post_init__(self) -> None:
        for name, (lowest, highest, rule) in _RANGES.items():
            value = getattr(self, name)
            if not lowest <= value <= highest:  # NaN is in no range
                raise CallerError(f"{_CALLED.get(name, name)} is {value}: {rule}")
        if self.seed is not None and not 0 <= self.seed < RANDOM_SEED:
            raise CallerError(f"seed is {self.seed}: it must be from 0 to {RANDOM_SEED - 1}")
        if any(not (bias == -math.inf or abs(bias) <= _F32) for bias in self.logit_bias.values()):
            raise CallerError("logit_bias must have finite numbers, or -inf to forbid a token")
        _check_breakers(self.dry_sequence_breakers)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is always taken."""
        return self.temperature <= 0

    @property
    def penalizes(self) -> bool:
        """Whether the penalties change anything."""
        some = (self.repeat_penalty, self.frequency_penalty, self.presence_penalty) != (1, 0, 0)
        return some and self.penalty_last_n > 0 and not self._mirostats

    @property
    def dries(self) -> bool:
        """Whether DRY changes anything."""
        some = self.dry_multiplier > 0 and self.dry_base >= 1 and self.dry_penalty_last_n != 0
        return some and not self._mirostats

    @property
    def _mirostats(self) -> bool:
        return self.mirostat > 0 and not self.greedy

    @property
    def needs_vocabulary(self) -> bool:
        """Whether a sampler has to know the text of the tokens."""
        return self.grammar is not None or self.dries

    def as_json(self) -> str:
        """The parameters as text; see `from_json`.

        It is a JSON object with a member for each field. The bias is a list of [token, bias], where
        null forbids the token: JSON has no infinity.
        """
        names = [found.name for found in dataclasses.fields(self)]
        members: dict[str, Any] = {name: getattr(self, name) for name in names}
        members["logit_bias"] = [
            [token, None if bias == -math.inf else bias] for token, bias in self.logit_bias.items()
        ]
        return json.dumps(members, allow_nan=False, ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes | memoryview) -> SamplingParams:
        """Read what `as_json` wrote; what is left out has its default.

        Raises:
            CallerError: it is no such text, a field is unknown, or a value cannot be.
        """
        try:
            members = msgspec.json.decode(text, type=dict[str, Any])
            pairs = msgspec.convert(
                members.pop("logit_bias", []), list[tuple[int, float | None]], strict=True
            )
            unknown = members.keys() - {found.name for found in dataclasses.fields(cls)}
            if unknown:
                raise CallerError(f"{sorted(unknown)[0]!r} is no parameter of sampling")
            bias = {token: -math.inf if bias is None else bias for token, bias in pairs}
            return msgspec.convert({**members, "logit_bias": bias}, cls, strict=True)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise CallerError(f"the parameters of sampling cannot be read: {error}") from None


def _check_breakers(breakers: tuple[str, ...]) -> None:
    if len(breakers) > _MOST_BREAKERS:
        raise CallerError(
            f"dry_sequence_breakers has {len(breakers)} texts: {_MOST_BREAKERS} are allowed"
        )
    for breaker in breakers:
        if not 1 <= len(breaker.encode("utf-8", "replace")) <= _LONGEST_BREAKER:
            raise CallerError(
                f"dry_sequence_breakers has {breaker!r}: each must be 1 to {_LONGEST_BREAKER} "
                "bytes long"
            )
