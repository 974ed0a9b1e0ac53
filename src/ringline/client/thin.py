"""Which parts of extension level 5 a ring uses: all that both ends have, unless told otherwise."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Self

from ringline.errors import CallerError

__all__ = ["LEVEL", "Parts"]

#: the extension level that a node must have for any of it.
LEVEL = 5


@dataclass(frozen=True, slots=True)
class Parts:
    """What makes a coordinator thin; each part falls back to the older way where it is off.

    Attributes:
        codec: descriptors once, inputs as changes, graphs by difference.
        rows: the embedding goes as token ids, the node gathers the rows.
        sampling: tokens are chosen where the logits are, and only they come back.
    """

    codec: bool = True
    rows: bool = True
    sampling: bool = True

    @classmethod
    def all(cls) -> Self:
        """Everything."""
        return cls()

    @classmethod
    def none(cls) -> Self:
        """The way of level 4."""
        return cls(codec=False, rows=False, sampling=False)

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Read `all`, `none`, or names with commas or + between them.

        Args:
            text: the words.
            where: what they were given as, for the error.

        Raises:
            CallerError: a name is none of ours.
        """
        known = [field.name for field in fields(cls)]
        names = [name.strip() for name in re.split("[,+]", text) if name.strip()]
        if names in (["all"], ["none"]):
            return cls.all() if names == ["all"] else cls.none()
        for name in names:
            if name not in known:
                raise CallerError(f"{where}: {name} must be one of all, none, {', '.join(known)}")
        return cls(**{name: name in names for name in known})
