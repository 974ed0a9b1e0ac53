"""Tokens to text, piece by piece, without ever cutting a character in two."""

from __future__ import annotations

import codecs
from typing import Protocol

__all__ = ["StreamDecoder"]


class _Pieces(Protocol):
    """What a decoder asks of a model."""

    def piece(self, token: int, *, special: bool = False) -> bytes: ...


class StreamDecoder:
    """Turns a stream of tokens into text.

    A character may be spread over several tokens (an emoji often is): its bytes are held back until
    the last one came. Bytes that can never become UTF-8 are shown as U+FFFD.
    """

    def __init__(self, model: _Pieces, *, special: bool = False) -> None:
        """Begin a stream.

        Args:
            model: gives the bytes of a token (`Model`).
            special: whether control tokens are shown by their names; they are left out otherwise.
        """
        self._model = model
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def feed(self, token: int) -> str:
        """Return the text that is complete with this token; often one word, sometimes nothing."""
        return self._decoder.decode(self._model.piece(token, special=self._special))

    def flush(self) -> str:
        """End the stream: a character that never became whole is shown as U+FFFD."""
        return self._decoder.decode(b"", final=True)
