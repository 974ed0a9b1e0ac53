"""A context whose step runs over a ring: on a lane of its own, decoded again if a transfer fails.

Created, used and closed by one thread at a time.
"""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from typing import Final

from ringline.client.ring import RemoteDevices
from ringline.errors import TransferError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model

__all__ = ["RingContext"]

_log = logging.getLogger(__name__)

#: decodes of one batch: a failed transfer takes another path at the next try, so two should do;
#: a longer ring may lose one edge after the other.
_TRIES: Final = 4


class RingContext(Context):
    """A Context over the devices of a ring. Its errors are those of Context and of the nodes."""

    def __init__(
        self,
        model: Model,
        remote: RemoteDevices,
        *,
        n_ctx: int,
        n_batch: int,
        n_ubatch: int,
        n_threads: int,
        n_seq_max: int = 1,
        kv_unified: bool = False,
    ) -> None:
        """Open a lane to every node and make the context there.

        Raises:
            CallerError: a size that makes no sense, or that there is no memory for.
            NetworkError, PeerError: a node failed.
        """
        self._lane = remote.lane()
        try:
            with self._lane.bound():
                super().__init__(
                    model,
                    n_ctx=n_ctx,
                    n_batch=n_batch,
                    n_ubatch=n_ubatch,
                    n_seq_max=n_seq_max,
                    n_threads=n_threads,
                    kv_unified=kv_unified,
                    check=remote.check,
                )
        except BaseException:
            self._lane.close()
            raise

    def decode(self, batch: Batch) -> None:
        """Run a batch; where a transfer fails, forget what it left behind and run it again.

        Raises:
            TransferError: it failed at every try. NetworkError, PeerError: a node failed.
            CallerError, LibraryError: as Context.decode.
        """
        with self._lane.bound():
            for left in reversed(range(_TRIES)):
                try:
                    super().decode(batch)
                except TransferError as error:
                    if not left:
                        raise
                    _log.warning("%s; decoding this step again", error)
                    for seq_id, position in batch.first_positions().items():
                        self.seq_rm(seq_id, position)
                else:
                    return

    def bound(self) -> AbstractContextManager[None]:
        """Bind the lane to this thread: for reading logits, which may ask the nodes as well."""
        return self._lane.bound()

    def waiting(self) -> list[str]:
        """Who owes a reply to the step under way, and to which command; any thread may ask."""
        return self._lane.waiting()

    def close(self) -> None:
        """Free the context and close its lane; a second call does nothing."""
        with self._lane.bound():
            super().close()
        self._lane.close()
