"""What a chat talks to: somebody who answers a conversation. Times are seconds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

__all__ = ["Partner", "Reply", "Speed", "Turn"]


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the role is system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Speed:
    """How an answer came.

    Attributes:
        first_token: until its first piece of text came (TTFT); 0 where none came.
        n_tokens: how many it has; None: the server does not say.
        rate: tokens per second after the first; 0: unknown.
        n_prompt: tokens of the conversation before it; None: unknown.
        n_reused: those of them that were in a cache already.
        limit: why it was cut off, in words; "" for one that ended by itself.
    """

    first_token: float
    n_tokens: int | None = None
    rate: float = 0.0
    n_prompt: int | None = None
    n_reused: int = 0
    limit: str = ""

    def __str__(self) -> str:
        """One line for people."""
        parts = [f"first token after {self.first_token:.2f} s"] if self.first_token else []
        if self.n_tokens is not None:
            rate = f", {self.rate:.1f} tok/s" if self.rate else ""
            parts.append(f"{self.n_tokens} tokens{rate}")
        if self.n_prompt is not None:
            cached = f" ({self.n_reused} from the cache)" if self.n_reused else ""
            parts.append(f"prompt {self.n_prompt} tokens{cached}")
        if self.limit:
            parts.append(self.limit)
        return "; ".join(parts)


class Reply(Protocol):
    """An answer under way."""

    def __iter__(self) -> Iterator[str]:
        """Yield its text as it comes.

        Raises:
            RinglineError: it failed.
        """

    def stop(self) -> None:
        """Let it end now; may be called at any time, never raises."""

    def speed(self) -> Speed:
        """How it came; once it has ended or was stopped."""


class Partner(Protocol):
    """Answers conversations.

    Attributes:
        lasting: whether it may answer again after a failure that was not the caller's.
    """

    lasting: bool

    def answer(self, turns: Sequence[Turn]) -> Reply:
        """Begin to answer.

        Raises:
            CallerError: this conversation cannot be answered. RinglineError: none can be any more.
        """
