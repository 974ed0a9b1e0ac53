"""Rows of logits that stay on their node: what libllama reads in their place, and which is which.

Nobody reads the logits of a context that embeds, and libllama asks for them all the same: a row for
each token of the batch, which would be most of what comes over the wire.

libllama asks for logits piece by piece into one array of its own, and may sort the rows of that
array afterwards. So each row that stays away gets a mark in the array: after the decode the mark
tells, for a token of the batch, which of the kept rows is its own.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

from ringline.ggml.layout import TENSOR
from ringline.ggml.memory import record_at, view
from ringline.wire.sampling import KeepRows

if TYPE_CHECKING:
    from ringline.client.device import RemoteDevice
    from ringline.client.node import Node

__all__ = ["KeptRows", "UnreadRows"]

#: the name of the logits in a graph of libllama.
_LOGITS: Final = b"result_output"
#: a mark: text that is no logit anybody has seen (1.1e24), and the number of the row.
_MARK: Final = struct.Struct("<4sI")
_TEXT: Final = b"ring"
_FLOAT: Final = 4


class KeptRows:
    """The rows of one decode on one lane, numbered as the node numbers them.

    Attributes:
        node: where they are; None: nothing was kept.
        count: how many.
    """

    def __init__(self, n_vocab: int) -> None:
        """Keep rows of `n_vocab` numbers."""
        self.node: Node | None = None
        self.count = 0
        self._width = n_vocab

    def take(self, device: RemoteDevice, tensor: int, data: int, offset: int, size: int) -> bool:
        """Let the rows that libllama reads stay on the node; False: this is no such read.

        Args:
            device: holds the tensor.
            tensor: address of the ggml_tensor.
            data: where libllama wants the bytes; gets marks.
            offset: where the range begins that is read, bytes.
            size: of the range, bytes.
        """
        row = self._width * _FLOAT
        if not _are_logits(tensor) or size % row or not device.samples:
            return False
        request = KeepRows(device.packer.pack(tensor), offset, size, self._width)
        device.node.connection.queue(request.COMMAND, request.pack())
        for place in range(data, data + size, row):
            view(place, _MARK.size)[:] = _MARK.pack(_TEXT, self.count)
            self.count += 1
        self.node = device.node
        return True

    def number(self, address: int) -> int | None:
        """Which kept row the array of libllama has at `address`; None: the row itself is there."""
        if not self.count:
            return None
        text, number = _MARK.unpack(view(address, _MARK.size))
        return int(number) if text == _TEXT and number < self.count else None


class UnreadRows:
    """The logits of a decode that nobody wants: they are neither kept nor fetched."""

    count = 0

    def take(self, device: RemoteDevice, tensor: int, data: int, offset: int, size: int) -> bool:
        """Whether libllama reads logits, which then stay what they were in its array."""
        return _are_logits(tensor)


def _are_logits(tensor: int) -> bool:
    return bytes(record_at(tensor, TENSOR)[0]["name"]) == _LOGITS
