"""Where the lines of a chat come from, and where its text goes: a terminal, or files and pipes."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ringline.settings import cache_folder

__all__ = ["is_terminal", "read_lines", "show"]

#: control characters but for tab and line feed: a model must not be able to steer a terminal.
_CONTROL: Final = dict.fromkeys(
    code for code in (*range(32), *range(127, 160)) if chr(code) not in "\t\n"
)


def is_terminal() -> bool:
    """Whether a person sits in front of it."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def show(text: str) -> None:
    """Write text of an answer to stdout; to a terminal without what it would take for orders."""
    sys.stdout.write(text.translate(_CONTROL) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def read_lines() -> Iterator[str]:
    """The lines that somebody writes, without their ends; Ctrl-C is raised, and more may follow."""
    if is_terminal():
        return _TerminalLines()
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="replace")
    return _PipedLines()


class _PipedLines:
    """Iterators of their own, not generators: one that Ctrl-C interrupts has to go on."""

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = sys.stdin.readline()
        if not line:
            raise StopIteration
        return line.rstrip("\r\n")


class _TerminalLines:
    """Lines with history and editing; Alt-Enter begins a new line in a message."""

    def __init__(self) -> None:
        # Imported here: it takes a fifth of a second, and pipes do without.
        from prompt_toolkit import PromptSession
        from prompt_toolkit.history import FileHistory, History, InMemoryHistory
        from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

        path = _history_file()
        history: History = InMemoryHistory() if path is None else FileHistory(path)
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def _(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        self._session: PromptSession[str] = PromptSession("> ", history=history, key_bindings=keys)

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        try:
            return self._session.prompt()
        except EOFError:
            raise StopIteration from None


def _history_file() -> Path | None:
    """The file of what was typed, for its owner alone; None where it cannot be kept."""
    path = cache_folder() / "chat-history"
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600))
        return path
    return None
