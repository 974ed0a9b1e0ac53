"""A job's tokens become text: stop strings, the token limit, the end of the text. Pure.

Text that may become a stop string is held back until it is one, or cannot be one any more; a stop
string may begin and end anywhere in a token. Counts are tokens and characters.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ringline.engine.events import Piece, TokenLogprob
from ringline.engine.generation import StopReason
from ringline.llama.text import StreamDecoder

__all__ = ["StopStrings", "Vocabulary", "Writer"]


class Vocabulary(Protocol):
    """What a writer asks of a model."""

    def is_end(self, token: int) -> bool:
        """Whether a text ends with this token."""

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token."""


class StopStrings:
    """Looks for the first of several strings in a text that comes in pieces."""

    def __init__(self, strings: Sequence[str]) -> None:
        self._strings = tuple(dict.fromkeys(string for string in strings if string))
        self._longest = max(map(len, self._strings), default=0)
        self.held = ""
        #: the string that was found; nothing is taken in after it.
        self.found: str | None = None

    def feed(self, text: str) -> str:
        """Take more text in and return what can be shown; what may become a stop is held."""
        self.held += text
        places = [(self.held.find(string), string) for string in self._strings]
        hits = [(place, -len(string), string) for place, string in places if place >= 0]
        if hits:
            # The earliest one, and of two that begin there the longer one.
            place, _, self.found = min(hits)
            return self._release(place)
        return self._release(len(self.held) - self._partial())

    def flush(self) -> str:
        """Return what was held back: the text ends here."""
        return self._release(len(self.held))

    def _partial(self) -> int:
        """Length of the longest end of the held text that begins a stop string."""
        for length in range(min(self._longest - 1, len(self.held)), 0, -1):
            if any(string.startswith(self.held[-length:]) for string in self._strings):
                return length
        return 0

    def _release(self, n_chars: int) -> str:
        text, self.held = self.held[:n_chars], self.held[n_chars:]
        return text


class Writer:
    """One job's text, from its tokens.

    Attributes:
        vocabulary: of the model.
        ids: the tokens so far, without the one that ended the text.
        text: what was shown so far.
        logprobs: of the tokens that were shown, if there are any.
        stop_reason: why it ended; None before that.
        stop: the stop string that ended it, or None.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        *,
        n_predict: int = -1,
        stop: Sequence[str] = (),
        special: bool = False,
    ) -> None:
        """Begin a text.

        Args:
            vocabulary: of the model.
            n_predict: most tokens; negative: any number.
            stop: strings that end the text and are not shown.
            special: whether control tokens are shown.
        """
        self.ids: list[int] = []
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self.stop_reason: StopReason | None = None
        self.vocabulary = vocabulary
        self._n_predict = n_predict
        self._decoder = StreamDecoder(vocabulary, special=special)
        self._stops = StopStrings(stop)
        self._n_decoded = 0  # characters
        #: tokens not shown yet: where their text begins, the token, its logprob.
        self._waiting: deque[tuple[int, int, TokenLogprob | None]] = deque()

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stops.found

    @property
    def full(self) -> bool:
        """Whether no further token is wanted."""
        return 0 <= self._n_predict <= len(self.ids)

    def take(self, token: int, logprob: TokenLogprob | None = None) -> Piece | None:
        """Take the next token in; what can be shown with it, or None. Sets stop_reason at the end.

        Args:
            token: what was sampled.
            logprob: how likely it was, if that was asked for.
        """
        if self.vocabulary.is_end(token):
            return self.end(StopReason.END)
        self.ids.append(token)
        self._waiting.append((self._n_decoded, token, logprob))
        piece = self._show(self._decode(self._decoder.feed(token)))
        if self.stop is not None:
            self.stop_reason = StopReason.STOP
        elif self.full:
            piece = Piece.joined(piece, self.end(StopReason.LIMIT))
        return piece

    def end(self, reason: StopReason) -> Piece | None:
        """End the text for another reason; what was held back, or None.

        The rest may hold a stop string: half a character at the end becomes U+FFFD, and is text.
        """
        self.stop_reason = reason
        text = self._decode(self._decoder.flush())
        if self.stop is not None:
            self.stop_reason = StopReason.STOP
            return self._show(text)
        return self._show(text + self._stops.flush(), last=True)

    def _decode(self, text: str) -> str:
        self._n_decoded += len(text)
        return self._stops.feed(text)

    def _show(self, text: str, *, last: bool = False) -> Piece | None:
        """Make a piece of text, and of the tokens whose text begins in what is shown now."""
        self.text += text
        shown = []
        while self._waiting and (last or self._waiting[0][0] < len(self.text)):
            shown.append(self._waiting.popleft())
        if not text and not shown:
            return None
        logprobs = [logprob for *_, logprob in shown if logprob is not None]
        self.logprobs += logprobs
        return Piece(text, tuple(token for _, token, _ in shown), tuple(logprobs))
