"""Write docs/cli.md: what `ringline --help` and the help of every command say.

    python tools/make_cli_docs.py

A test compares the file with the commands, so that it cannot fall behind.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from typer.core import TyperGroup
from typer.main import get_command

from ringline.cli.main import app

__all__ = ["PATH", "reference"]

_ROOT = Path(__file__).resolve().parent.parent
PATH = _ROOT / "docs" / "cli.md"
#: nothing else: the reader's terminal, locale and settings must not show in the text; and the
#: commands are those of this checkout, whichever one is installed.
_ENVIRONMENT = {
    "COLUMNS": "100",
    "TERM": "dumb",
    "NO_COLOR": "1",
    "PYTHONUTF8": "1",
    "PYTHONPATH": str(_ROOT / "src"),
}
_HEAD = """\
# The command line

Written by `python tools/make_cli_docs.py` from what each command says with `--help`.

Data goes to standard output; talk, progress and errors go to standard error. Lists have one syntax
everywhere: entries with commas between them. An error is one sentence; `RINGLINE_DEBUG=1` shows
where it happened ([settings.md](settings.md)).

| exit code | means |
|---|---|
| 0 | done |
| 1 | an error: the last line of standard error says what, and what to do |
| 2 | wrong usage: an unknown flag, a value of the wrong kind |
| 130 | interrupted by Ctrl-C |
"""


def reference() -> str:
    """The text of docs/cli.md."""
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    return _HEAD + "".join(map(_section, _walk(group)))


def _walk(group: TyperGroup, *words: str) -> Iterator[tuple[str, ...]]:
    """A group and all commands below it, each as the words that one types."""
    path = words or ("ringline",)
    yield path
    for name in group.commands or group.list_commands(None):  # type: ignore[arg-type]
        command = group.get_command(None, name)  # type: ignore[arg-type]
        if isinstance(command, TyperGroup):
            yield from _walk(command, *path, name)
        else:
            yield (*path, name)


def _section(words: tuple[str, ...]) -> str:
    """A command and what it says with --help, without the blanks at the ends of lines."""
    done = subprocess.run(
        [sys.executable, "-m", *words, "--help"],
        env=_ENVIRONMENT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=True,
        encoding="utf-8",
    )
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines()).strip("\n")
    return f"\n## {' '.join(words)}\n\n```text\n{text}\n```\n"


if __name__ == "__main__":
    PATH.write_text(reference(), encoding="utf-8")
    print(PATH)
