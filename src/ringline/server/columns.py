"""What all checks of graphs share: types of columns, and how a tensor is refused."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ringline.errors import RefusedError

__all__ = ["I64", "Mask", "Records", "refuse"]

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Records = npt.NDArray[np.void]


def refuse(tensors: Records, bad: Mask, text: str, *, rule: str, among: I64 | None = None) -> None:
    """Refuse a graph because of the first bad tensor.

    Args:
        tensors: records, for the name.                          # [n_tensors]
        bad: which break the rule; in a second dimension: where. # [n_tensors] or [len(among)]
        text: what is wrong, in words.
        rule: the same as a word that programs may count by.
        among: indices of the tensors that `bad` is about; None: all of them, in order.

    Raises:
        RefusedError: any is bad.
    """
    # Flat: a reduction along short rows costs much more, and only a refusal needs it.
    if bad.any():
        rows = np.flatnonzero(bad if bad.ndim == 1 else bad.any(axis=1))
        first = int(rows[0] if among is None else among[rows[0]])
        name = bytes(tensors["name"][first]).split(b"\0", 1)[0].decode("utf-8", "replace")
        where = f"tensor {name!r} (id {int(tensors['id'][first]):#x})"
        raise RefusedError(f"{where}: {text}", rule=rule)
