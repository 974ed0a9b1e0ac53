"""Logprobs in the shapes of both APIs."""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from ringline.engine.events import TokenLogprob

__all__ = ["ChatLogprobs", "CompletionLogprobs"]


def _text(entry: TokenLogprob) -> str:
    """The token's text; one that is no text by itself has a name, as OpenAI writes it."""
    try:
        return entry.piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.piece)


def _chat_entry(entry: TokenLogprob) -> dict[str, object]:
    return {
        "id": entry.token,
        "token": _text(entry),
        "logprob": entry.logprob,
        "bytes": list(entry.piece),
    }


class ChatLogprobs:
    """/v1/chat/completions: a list of entries with their bytes."""

    @staticmethod
    def shape(entries: Iterable[TokenLogprob]) -> dict[str, object]:
        """The field `logprobs` for these tokens."""
        content = [
            {**_chat_entry(entry), "top_logprobs": [_chat_entry(top) for top in entry.top]}
            for entry in entries
        ]
        return {"content": content, "refusal": None}


class CompletionLogprobs:
    """/v1/completions: lists side by side, with the place of each token in the text."""

    def __init__(self) -> None:
        self._n_characters = 0
        # As the engine does it: a character begins with the token that completes it.
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def shape(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        """The field `logprobs` for the next tokens."""
        offsets = []
        for entry in entries:
            offsets.append(self._n_characters)
            self._n_characters += len(self._decoder.decode(entry.piece))
        return {
            "tokens": [_text(entry) for entry in entries],
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [
                {_text(top): top.logprob for top in entry.top} if entry.top else None
                for entry in entries
            ],
            "text_offset": offsets,
        }
