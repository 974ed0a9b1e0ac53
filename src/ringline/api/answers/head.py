"""What stands at the head of every answer of a request: its name, the time, the model."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ringline import __version__

__all__ = ["DONE", "FINGERPRINT", "Head", "event"]

#: the last event of a stream.
DONE: Final = b"data: [DONE]\n\n"
FINGERPRINT: Final = f"build-ringline-{__version__}"


@dataclass(frozen=True, slots=True)
class Head:
    """The members that all objects of one answer share.

    Attributes:
        id: the answer's name.
        kind: the member `object`.
        model: the model's name.
        created: seconds since 1970.
    """

    id: str
    kind: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    @classmethod
    def new(cls, prefix: str, kind: str, model: str) -> Head:
        """A head with a name of its own."""
        return cls(f"{prefix}-{secrets.token_hex(12)}", kind, model)

    def members(self) -> dict[str, object]:
        """As members of a JSON object."""
        return {
            "id": self.id,
            "object": self.kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": FINGERPRINT,
        }

    def opening(self) -> bytes:
        """The beginning of an event, up to what the choices are: encoded once for all of them."""
        return b"data: " + msgspec.json.encode(self.members())[:-1] + b',"choices":['


def event(value: object) -> bytes:
    """An object as an event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
