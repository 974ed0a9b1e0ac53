"""Steps of a ring as libllama's scheduler makes them, without one: what the codec's tests send.

Names and layouts are those seen with llama-cpp-python 0.3.36; addresses and numbers are made up.
"""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field

import numpy as np

from ringline.wire.commands import Command
from ringline.wire.graph import GraphBody
from ringline.wire.tensor import RECORD, Tensor
from ringline.wire.thin import next_ticket

F32, F16, I32, I64 = 0, 1, 26, 27
#: cells that the window of the KV cache grows by.
CELLS = 256
ENDPOINT = b"192.168.1.12:50052"

Step = list[tuple[Command, bytes]]


def record(name: str, kind: int, size: int, ne: tuple[int, int, int, int], seed: str = "") -> bytes:
    """A record with numbers that belong to its name, and strides that belong to its shape."""
    luck = random.Random(name + seed)
    widths = (size, size * ne[0], size * ne[0] * ne[1], size * ne[0] * ne[1] * ne[2])
    return Tensor(
        id=0x5500_0000_0000 + 336 * luck.randrange(1 << 20),
        type=kind,
        buffer=(7 << 32) | luck.randrange(1 << 32),
        ne=ne,
        nb=widths,
        flags=1,
        data=0x1000_0000 + 32 * luck.randrange(1 << 20),
        name=name,
    ).pack()


def graph(n_tensors: int, n_kv: int) -> bytes:
    """A graph of 200 KB for this window; another window changes some 74 bytes in it."""
    luck = random.Random(n_tensors)
    tensors = np.zeros(n_tensors, RECORD)
    tensors["id"] = 0x5500_0000_0000 + 336 * np.arange(n_tensors)
    tensors["type"] = luck.choices((F32, F16, 12), k=n_tensors)
    tensors["buffer"] = (7 << 32) | 12345
    tensors["ne"] = [[luck.choice((64, 576, 1536)), luck.randrange(1, 33), 1, 1] for _ in tensors]
    tensors["nb"] = [[4, 256, 2304, 4 * luck.randrange(1, 10000)] for _ in tensors]
    tensors["op"] = luck.choices(range(80), k=n_tensors)
    tensors["data"] = [0x1000_0000 + 32 * luck.randrange(1 << 24) for _ in tensors]
    tensors["name"] = [b"blk.%d.node_%d" % (i // 20, i) for i in range(n_tensors)]
    tensors["src"][:, 0] = 0x5500_0000_0000 + 336 * np.arange(n_tensors)[::-1]
    for index in luck.sample(range(n_tensors), 74):
        tensors["ne"][index][luck.randrange(2)] = (n_kv & 0xFF00) | 0x40
    return bytes(GraphBody(0, tensors["id"].astype(np.uint64), tensors).pack())


@dataclass
class Ring:
    """The steps of a ring of three nodes, each row one token further with every step.

    Attributes:
        rows: texts under way.
        tick: steps done; row r of step t writes the KV cell rows * t + r.
    """

    rows: int
    tick: int = 3
    copy: int = 0
    start: int = 100
    chains: list[bytes] = field(default_factory=lambda: [b"0" * 16, b"1" * 16])
    luck: random.Random = field(default_factory=lambda: random.Random(5))
    stored: dict[str, int] = field(default_factory=dict)

    @property
    def n_kv(self) -> int:
        """The window: all cells used so far, in whole CELLS, two at least."""
        return max(2, -(-self.rows * (self.tick + 1) // CELLS)) * CELLS

    def next(self) -> list[Step]:
        """The commands of one step at each of the nodes."""
        self.tick += 1
        self.chains = [next_ticket(ticket) for ticket in self.chains]
        first = [self.tokens(), *self.inputs("RPC0"), self.compute("RPC0"), self.send(0)]
        middle = [self.receive(0), *self.inputs("RPC1"), self.compute("RPC1"), self.send(1)]
        last = [self.receive(1), *self.inputs("RPC2"), self.out_ids(), self.compute("RPC2")]
        return [first, middle, [*last, self.keep(), self.sample()]]

    def tokens(self) -> tuple[Command, bytes]:
        ids = [self.luck.randrange(49152) for _ in range(self.rows)]
        raw = record(f"RPC0#inp_embd#{self.copy}", F32, 4, (576, self.rows, 1, 1))
        return Command.SET_ROWS, raw + struct.pack(f"<II{self.rows}i", 1, self.rows, *ids)

    def inputs(self, stage: str) -> Step:
        rows, tick = self.rows, self.tick
        cells = [rows * tick + row for row in range(rows)]
        places = [self.start * (row + 1) + tick for row in range(rows)]
        return [
            self.write(f"{stage}#leaf_4", I32, np.array(places, "<i4")),
            self.write(f"{stage}#leaf_8", I64, np.array(cells, "<i8")),
            self.write(f"{stage}#leaf_9", I64, np.array(cells, "<i8")),
            self.write(f"{stage}#attn_inp_kq_mask", F16, self.mask()),
        ]

    def mask(self) -> np.ndarray:
        """Row r sees the cells of its own text: every rows-th one.  # [rows, n_kv] f16"""
        mask = np.full((self.rows, self.n_kv), -np.inf, "<f2")
        for row in range(self.rows):
            mask[row, row : self.rows * self.tick + row + 1 : self.rows] = 0
        return mask

    def write(self, name: str, kind: int, values: np.ndarray) -> tuple[Command, bytes]:
        shape = (*values.shape[::-1], 1, 1, 1)[:4]
        # The tensors of an attention have other addresses where the window is another one.
        raw = record(f"{name}#{self.copy}", kind, values.itemsize, shape, str(self.n_kv))
        return Command.SET_TENSOR, raw + struct.pack("<BQ", 0, 0) + values.tobytes()

    def out_ids(self) -> tuple[Command, bytes]:
        return self.write("RPC2#leaf_602", I32, np.arange(self.rows, dtype="<i4"))

    def compute(self, stage: str) -> tuple[Command, bytes]:
        """The graph, or the word that the node has it."""
        if self.stored.get(stage) == self.n_kv:
            return Command.GRAPH_RECOMPUTE, bytes(4)
        self.stored[stage] = self.n_kv
        return Command.GRAPH_COMPUTE, graph(600, self.n_kv)

    def send(self, edge: int) -> tuple[Command, bytes]:
        raw = record(f"l_out-{9 * edge + 9}", F32, 4, (576, self.rows, 1, 1), str(self.n_kv))
        head = struct.pack("<QQ", 0, 4 * 576 * self.rows) + self.chains[edge]
        tail = struct.pack("<QI", 9, len(ENDPOINT)) + ENDPOINT
        return Command.SEND_TENSOR, raw + head + tail

    def receive(self, edge: int) -> tuple[Command, bytes]:
        name = f"RPC{edge + 1}#l_out-{9 * edge + 9}#{self.copy}"
        raw = record(name, F32, 4, (576, self.rows, 1, 1), str(self.n_kv))
        head = struct.pack("<QQ", 0, 4 * 576 * self.rows) + self.chains[edge]
        return Command.RECV_TENSOR, raw + head + struct.pack("<I", 22500)

    def keep(self) -> tuple[Command, bytes]:
        raw = record("result_output", F32, 4, (49152, self.rows, 1, 1), str(self.n_kv))
        return Command.KEEP_ROWS, raw + struct.pack("<QQI", 0, 4 * 49152 * self.rows, 49152)

    def sample(self) -> tuple[Command, bytes]:
        rows = range(self.rows)
        lists = [*rows, *(10 + row for row in rows), *(0 for _ in rows)]
        head = struct.pack("<II", self.tick, self.rows)
        return Command.SAMPLE, head + struct.pack(f"<{len(lists)}i", *lists)
