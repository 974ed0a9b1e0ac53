"""What an engine holds: slots and groups, context of a request, cost of the KV cache. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ringline.errors import CallerError

__all__ = ["CONTEXT_UNIT", "Capacity"]

#: libllama rounds the context of a sequence up to a multiple of so many tokens.
CONTEXT_UNIT: Final = 256


@dataclass(frozen=True, slots=True)
class Capacity:
    """How requests share an engine.

    Attributes:
        slots: number of slots of each group.
        n_ctx: tokens of context of one request.
        kv_bytes: what the KV caches of all groups take, on all stages together.
    """

    slots: tuple[int, ...]
    n_ctx: int
    kv_bytes: int

    @classmethod
    def share(cls, *, parallel: int, groups: int, n_ctx: int, n_ctx_train: int) -> Capacity:
        """Share slots among groups, and context among slots; what it costs is not known yet.

        Args:
            parallel: slots in all.
            groups: number of groups.
            n_ctx: tokens of context of all slots together; 0: for each what the model was trained
                for.
            n_ctx_train: what the model was trained for, in tokens.

        Raises:
            CallerError: there are fewer slots than groups, or less context than slots.
        """
        if groups < 1 or parallel < groups:
            raise CallerError(
                f"{parallel} requests at once in {groups} groups: each group needs at least one"
            )
        if n_ctx < 0 or 0 < n_ctx < parallel:
            raise CallerError(
                f"n_ctx is {n_ctx} for {parallel} requests at once: raise it, or give 0 for the "
                "model's own context for each"
            )
        slots = tuple(parallel // groups + (i < parallel % groups) for i in range(groups))
        part = n_ctx // parallel if n_ctx else n_ctx_train
        return cls(slots, -(-part // CONTEXT_UNIT) * CONTEXT_UNIT, 0)

    @property
    def parallel(self) -> int:
        """Slots in all."""
        return sum(self.slots)

    def describe(self) -> str:
        """One line for people."""
        groups = f" in {len(self.slots)} groups" if len(self.slots) > 1 else ""
        requests = "1 request" if self.parallel == 1 else f"{self.parallel} requests"
        return (
            f"{requests} at once{groups}, {self.n_ctx} tokens of context each; "
            f"their KV cache takes {self.kv_bytes / 1e6:.1f} MB"
        )
