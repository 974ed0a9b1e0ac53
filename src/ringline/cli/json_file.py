"""The file that `--json FILE` names: found to be writable before the work, written after it."""

from __future__ import annotations

import json
from pathlib import Path

from ringline.errors import CallerError

__all__ = ["check_writable", "write_json"]


def check_writable(path: Path | None) -> None:
    """Refuse a file that cannot be written, before a minute of work ends there.

    Raises:
        CallerError: says why.
    """
    if path is not None:
        _write(path, "a", "")


def write_json(path: Path | None, value: object) -> None:
    """Write a value, if there is a file for it.

    Raises:
        CallerError: the file cannot be written (any more).
    """
    if path is not None:
        _write(path, "w", json.dumps(value, indent=2) + "\n")


def _write(path: Path, mode: str, text: str) -> None:
    try:
        with path.open(mode, encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CallerError(f"--json {path} cannot be written: {error.strerror}") from None
