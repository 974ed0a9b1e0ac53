"""The tensor record: 296 bytes that describe one tensor, as one value and as a numpy dtype.

Offsets from `struct rpc_tensor` in ggml-rpc.cpp of llama-cpp-python 0.3.36.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

import numpy as np

from ringline.wire.commands import TENSOR_SIZE

__all__ = ["NO_TENSOR", "RECORD", "Tensor"]

#: one record as a numpy dtype, for arrays of tensors; packed, 296 bytes.
RECORD: Final = np.dtype(
    [
        ("id", "<u8"),
        ("type", "<u4"),
        ("buffer", "<u8"),
        ("ne", "<u4", (4,)),
        ("nb", "<u4", (4,)),
        ("op", "<u4"),
        ("op_params", "V64"),
        ("flags", "<i4"),
        ("src", "<u8", (10,)),
        ("view_src", "<u8"),
        ("view_offs", "<u8"),
        ("data", "<u8"),
        ("name", "S64"),
        ("use_count", "<i4"),
    ]
)

_LAYOUT: Final = struct.Struct("<QIQ4I4II64si10QQQQ64si")
assert RECORD.itemsize == _LAYOUT.size == TENSOR_SIZE

#: the record that stands for "no tensor".
NO_TENSOR: Final = bytes(TENSOR_SIZE)


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor record.

    Attributes:
        id: the sender's name for the tensor, unique in one graph; 0 is "no tensor".
        type: ggml_type.
        buffer: handle of the buffer that holds it, 0 for none.
        ne: elements per dimension.
        nb: stride per dimension, bytes; 32 bits on the wire, so strides over 4 GiB are cut.
        op: ggml_op; op_params: its 64 bytes of parameters.
        flags: GGML_TENSOR_FLAG bits.
        src: ids of the sources; view_src: id of the tensor this is a view of; view_offs: bytes.
        data: address inside the buffer's (virtual) address range.
        name: for people.
        use_count: how many nodes of the graph use it.
    """

    id: int
    type: int
    buffer: int
    ne: tuple[int, int, int, int]
    nb: tuple[int, int, int, int]
    op: int = 0
    op_params: bytes = bytes(64)
    flags: int = 0
    src: tuple[int, ...] = (0,) * 10
    view_src: int = 0
    view_offs: int = 0
    data: int = 0
    name: str = ""
    use_count: int = 0

    def pack(self) -> bytes:
        """The 296 bytes of this record."""
        return _LAYOUT.pack(
            self.id,
            self.type,
            self.buffer,
            *self.ne,
            *self.nb,
            self.op,
            self.op_params,
            self.flags,
            *self.src,
            self.view_src,
            self.view_offs,
            self.data,
            self.name.encode("utf-8", "replace")[:63],
            self.use_count,
        )

    @classmethod
    def unpack(cls, raw: bytes | memoryview, offset: int = 0) -> Tensor:
        """Read a record from `raw` at `offset`; any 296 bytes are a record, nothing is checked."""
        f = _LAYOUT.unpack_from(raw, offset)
        return cls(
            id=f[0],
            type=f[1],
            buffer=f[2],
            ne=f[3:7],
            nb=f[7:11],
            op=f[11],
            op_params=f[12],
            flags=f[13],
            src=f[14:24],
            view_src=f[24],
            view_offs=f[25],
            data=f[26],
            name=f[27].split(b"\0", 1)[0].decode("utf-8", "replace"),
            use_count=f[28],
        )
