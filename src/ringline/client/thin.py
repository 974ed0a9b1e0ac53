"""Which parts of extension level 5 a client may use, where the nodes have it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Parts"]


@dataclass(frozen=True, slots=True)
class Parts:
    """The parts of level 5, each on or off.

    Attributes:
        codec: tensors and graphs are described once, inputs sent as changes, graphs by difference.
        rows: the embedding's rows are sent as token ids.
        sampling: the last stage samples and sends tokens instead of logits.
    """

    codec: bool = True
    rows: bool = True
    sampling: bool = True

    @classmethod
    def all(cls) -> Parts:
        """Everything."""
        return cls()

    @classmethod
    def none(cls) -> Parts:
        """Nothing: level 4 at most."""
        return cls(codec=False, rows=False, sampling=False)
