"""Lists in arguments: entries with commas between them."""

from __future__ import annotations

from ringline.errors import CallerError

__all__ = ["distinct", "numbers", "words"]


def words(text: str) -> list[str]:
    """The entries of a list, without the empty ones."""
    return [word.strip() for word in text.split(",") if word.strip()]


def numbers(flag: str, text: str | None) -> list[int] | None:
    """The numbers of a list; None where the flag was not given.

    Raises:
        CallerError: an entry is no number.
    """
    if text is None:
        return None
    entries = words(text)
    if not all(word.isascii() and word.isdigit() for word in entries):
        raise CallerError(f"{flag} {text}: write numbers with commas between them")
    return [int(word) for word in entries]


def distinct(values: list[int] | None) -> list[int] | None:
    """The same without what stands there twice."""
    return None if values is None else list(dict.fromkeys(values))
