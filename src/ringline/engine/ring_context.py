"""A context whose step runs over a ring: on a lane of its own, decoded again if a transfer fails.

Created, used and closed by one thread at a time. Where the node that holds the logits can sample,
only tokens come back from a step.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ringline.client.kept import KeptRows, UnreadRows
from ringline.client.ring import RemoteDevices
from ringline.client.samplers import RemoteSamplers
from ringline.errors import EngineError, TransferError
from ringline.llama.batch import Batch
from ringline.llama.choice import Choice, Wanted, choose
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.llama.pooling import Pooling
from ringline.llama.vocabulary import vocabulary_header

__all__ = ["RingContext"]

_log = logging.getLogger(__name__)

#: decodes of one batch: a failed transfer takes another path at the next try, so two should do;
#: a longer ring may lose one edge after the other.
_TRIES: Final = 4
T = TypeVar("T")


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
        pooling: Pooling | None = None,
    ) -> None:
        """Open a lane to every node and make the context there; sizes as Context takes them.

        Raises:
            CallerError: a size that makes no sense, or that there is no memory for.
            NetworkError, PeerError: a node failed.
        """
        self._remote = remote
        self._samplers: RemoteSamplers | None = None
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
                    pooling=pooling,
                    check=self._check_nodes,
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
        self._tried(batch, lambda: super(RingContext, self).decode(batch))

    def step(self, batch: Batch, wanted: Sequence[Wanted]) -> list[Choice]:
        """Run a batch and choose tokens where the logits are; errors as decode().

        Args:
            batch: see decode().
            wanted: a token for some of those that asked for logits; the others' are of no use.
        """
        if self._samplers is not None:
            self._samplers.begin()
        return self._tried(batch, lambda: self._step(batch, wanted))

    def embed(self, batch: Batch, n_sequences: int) -> list[NDArray[np.float32]]:
        """Run a batch and return the vectors of its sequences 0 to n_sequences - 1; as decode().

        The sequences are forgotten first: a vector depends on its own text alone.
        """
        self._lane.kept = UnreadRows()
        try:
            with self._lane.bound():
                self.memory_clear()
            self.decode(batch)
            with self._lane.bound():
                return [self.embedding(sequence) for sequence in range(n_sequences)]
        finally:
            self._lane.kept = None

    def _tried(self, batch: Batch, run: Callable[[], T]) -> T:
        with self._lane.bound():
            for _ in range(_TRIES - 1):
                try:
                    return run()
                except TransferError as error:
                    _log.warning("%s; decoding this step again", error)
                    self._remote.counters.failed(error)
                    self._forget(batch, error)
            return run()

    def _forget(self, batch: Batch, error: TransferError) -> None:
        """Take back what a failed step has left, here and on the node that samples."""
        for seq_id, position in batch.first_positions().items():
            if not self.seq_rm(seq_id, position):
                raise EngineError(
                    f"a step failed and this model's memory cannot go back before it: {error}"
                )
        if self._samplers is not None:
            self._samplers.retry()

    def _step(self, batch: Batch, wanted: Sequence[Wanted]) -> list[Choice]:
        kept = self._lane.kept = KeptRows(self.model.n_vocab)
        try:
            super().decode(batch)
            places = [self.logits_address(one.index) for one in wanted]
            rows = [kept.number(place) for place in places]
            if kept.node is None or None in rows:
                return [choose(self.logits(one.index), one) for one in wanted]
            return self._choose_there(kept, [row for row in rows if row is not None], wanted)
        finally:
            self._lane.kept = None

    def _choose_there(
        self, kept: KeptRows, rows: Sequence[int], wanted: Sequence[Wanted]
    ) -> list[Choice]:
        """Ask the node for tokens; the step is over when it answers."""
        assert kept.node is not None
        if self._samplers is None:
            path = self.model.path
            self._samplers = RemoteSamplers(
                kept.node, self.model.n_vocab, lambda: vocabulary_header(path)
            )
            self._samplers.begin()
        choices: list[Choice] = []
        try:
            choices = self._samplers.choose(rows, wanted)
        except TransferError as error:
            self._lane.fail(error)
        self._lane.kept = None  # the step is over
        self._check_nodes()
        return choices

    def _check_nodes(self) -> None:
        """Raise what the nodes say; while rows are kept the step is still on its way."""
        kept = self._lane.kept
        if kept is not None and kept.count:
            self._remote.failures.check()
        else:
            self._remote.check()

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
