"""The files of the page, read once: bytes, type and tag of each."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType
from typing import Final

__all__ = ["INDEX", "Asset", "load_assets"]

INDEX: Final = "index.html"
_FOLDER: Final = "static"
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file.

    Attributes:
        body: its bytes.
        media_type: what browsers are told that it is.
        tag: the entity tag of these bytes, with its quotes.
    """

    body: bytes
    media_type: str
    tag: str


def load_assets() -> Mapping[str, Asset]:
    """All files by name; what is not among them is not served, whatever a path says."""
    folder = resources.files(__package__).joinpath(_FOLDER)
    found = {}
    for file in folder.iterdir():
        suffix = "." + file.name.rpartition(".")[2]
        if suffix in _TYPES:
            body = file.read_bytes()
            tag = f'"{hashlib.sha256(body).hexdigest()[:24]}"'
            found[file.name] = Asset(body, _TYPES[suffix], tag)
    return MappingProxyType(found)
