"""Logprobs in the shapes of both APIs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringline.engine.events import TokenLogprob

__all__ = ["ChatLogprobs", "CompletionLogprobs"]


def _text(entry: TokenLogprob) -> str:
    return entry.piece.decode("utf-8", "replace")


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
        self._offset = 0  # characters of the text so far

    def shape(self, entries: Sequence[TokenLogprob]) -> dict[str, object]:
        """The field `logprobs` for the next tokens."""
        texts = [_text(entry) for entry in entries]
        offsets = []
        for text in texts:
            offsets.append(self._offset)
            self._offset += len(text)
        return {
            "tokens": texts,
            "token_logprobs": [entry.logprob for entry in entries],
            "top_logprobs": [
                {_text(top): top.logprob for top in entry.top} if entry.top else None
                for entry in entries
            ],
            "text_offset": offsets,
        }
