"""Checks of a model file before the library sees it: it exists, it is GGUF, its shards are there.

llama.cpp names the shards of a model `NAME-00001-of-00003.gguf` and loads them all by the first.
Reads four bytes a file and loads nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from ringline.errors import CallerError

__all__ = ["MAGIC", "check_model_file", "shard_paths"]

MAGIC = b"GGUF"
_SHARD = re.compile(r"(?P<prefix>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


def check_model_file(path: Path) -> list[Path]:
    """Return all files of a model, the first one first.

    Args:
        path: a GGUF file, or the first shard of several.

    Raises:
        CallerError: a file is missing, unreadable or no GGUF file, or `path` is a later shard.
    """
    paths = shard_paths(path)
    for number, shard in enumerate(paths, start=1):
        if len(paths) > 1 and path.exists() and not shard.exists():
            raise CallerError(f"shard {number} of {len(paths)} of {path.name} is missing: {shard}")
        _check_magic(shard)
    return paths


def shard_paths(path: Path) -> list[Path]:
    """Return the paths of all shards that belong to the first one, or the path alone.

    Raises:
        CallerError: `path` names a shard that is not the first.
    """
    match = _SHARD.fullmatch(path.name)
    if match is None or int(match["count"]) < 1:
        return [path]
    number, count = int(match["number"]), int(match["count"])
    names = [f"{match['prefix']}-{i:05}-of-{count:05}.gguf" for i in range(1, count + 1)]
    if number != 1:
        raise CallerError(f"{path.name} is shard {number} of {count}: name the first, {names[0]}")
    return [path.with_name(name) for name in names]


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
    except FileNotFoundError as error:
        raise CallerError(f"there is no model file {path}") from error
    except IsADirectoryError as error:
        raise CallerError(f"{path} is a folder: name the GGUF file in it") from error
    except OSError as error:
        raise CallerError(f"model file {path} cannot be read: {error.strerror}") from error
    if magic != MAGIC:
        raise CallerError(
            f"{path} is not a GGUF file: it begins with {magic!r} instead of {MAGIC!r}"
        )
