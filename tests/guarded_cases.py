"""Play changed graphs of single ops with unreadable pages behind every tensor.

    python -m tests.guarded_cases FIRST COUNT

What the rules let through is computed; a kernel that reads or writes behind a tensor dies at once,
and the last line of the output is the number that it died of. A process of its own for that reason.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import sys
from dataclasses import replace

from ringline.errors import RefusedError
from ringline.ggml.devices import Buffer, cpu_device
from ringline.ggml.find import find_libraries
from ringline.ggml.types import tables
from ringline.server.buffers import Registry
from ringline.server.graphs import build_graph
from ringline.server.regions import tensor_size
from ringline.wire.tensor import Tensor
from tests.op_cases import CASES, body_of, graph_of, plain_strides
from tests.server_client import Block

ROOM = 1 << 17
GUARD = 1 << 16
STEP = ROOM + GUARD
PLACES = 16
#: ROPE reads factors beyond its tensor, which only have to be in the buffer (server/graphs.py).
NAMES = [name for name in CASES if not name.startswith("ROPE")]
EXTENTS = (0, 1, 2, 3, 5, 7, 8, 16, 31, 32, 33, 64, 96, 128, 256)
STRIDES = (0, 1, 2, 4, 8, 64, 4096, 1 << 20)


class Memory:
    """A buffer in which each tensor has a place that ends at an unreadable page."""

    def __init__(self) -> None:
        self.map = mmap.mmap(-1, STEP * PLACES)
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map))
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        protect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        for place in range(PLACES):
            assert protect(self.address + place * STEP + ROOM, GUARD, 0) == 0
        base = ctypes.CDLL(str(find_libraries() / "libggml-base.so"))
        wrap = base.ggml_backend_cpu_buffer_from_ptr
        wrap.restype, wrap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t)
        self.registry = Registry(7)
        buffer = Buffer(wrap(self.address, STEP * PLACES), host=True)
        made = self.registry.add(0, buffer)
        assert made is not None
        self.block = Block(made.handle, made.base, made.size)

    def clear(self) -> None:
        """Zeros everywhere: numbers of rows in the data are good ones."""
        for place in range(PLACES):
            ctypes.memset(self.address + place * STEP, 0, ROOM)

    def place(self, tensors: list[Tensor]) -> list[Tensor] | None:
        """Move each tensor to the end of its place, and views to where they belong.

        None where one is larger than its place.
        """
        placed: dict[int, Tensor] = {}
        for number, tensor in enumerate(tensors):
            if tensor.view_src in placed:
                data = placed[tensor.view_src].data + tensor.view_offs
            else:
                grain = int(tables().size[tensor.type]) if tables().block[tensor.type] == 1 else 2
                try:
                    size = tensor_size(tensor.type, tensor.ne, tensor.nb)
                except RefusedError:
                    size = 0
                if size > ROOM:
                    return None
                start = (ROOM - size) // grain * grain
                data = self.block.base + number * STEP + start
            placed[tensor.id] = replace(tensor, data=data)
        return list(placed.values())


def changed(tensors: list[Tensor], dice: random.Random) -> list[Tensor]:
    """Another extent wherever there was one, then perhaps odd strides or parameters somewhere."""
    old = dice.choice([count for tensor in tensors for count in tensor.ne])
    new = dice.choice((*EXTENTS, 2 * old, old + 1))
    made = []
    for tensor in tensors:
        ne = tuple(new if count == old else count for count in tensor.ne)
        made.append(replace(tensor, ne=ne, nb=plain_strides(tensor.type, ne)))
    for _ in range(dice.randrange(3)):
        number = dice.randrange(len(made))
        made[number] = odd(made[number], dice)
    return made


def odd(tensor: Tensor, dice: random.Random) -> Tensor:
    """One stride, one extent or one word of the parameters is another."""
    place, what = dice.randrange(4), dice.randrange(3)
    if what == 0:
        nb = list(tensor.nb)
        nb[place] = dice.choice(STRIDES)
        return replace(tensor, nb=tuple(nb))
    if what == 1:
        ne = list(tensor.ne)
        ne[place] = dice.choice(EXTENTS)
        return replace(tensor, ne=tuple(ne), nb=plain_strides(tensor.type, tuple(ne)))
    words = bytearray(tensor.op_params)
    words[4 * place : 4 * place + 4] = dice.choice((0, 1, 2, 7, 40, 1 << 30)).to_bytes(4, "little")
    return replace(tensor, op_params=bytes(words))


def main(first: int, count: int) -> None:
    """Play `count` graphs from number `first` on; prints each number before it is computed."""
    memory, backend, n_computed = Memory(), cpu_device().open(2), 0
    for number in range(first, first + count):
        case = CASES[NAMES[number % len(NAMES)]]
        dice = random.Random(number)
        tensors = memory.place(changed(graph_of(case, memory.block), dice))
        if tensors is None:
            continue
        try:
            stored = build_graph(body_of(tensors), memory.registry)
        except RefusedError:
            continue
        memory.clear()
        print(number, case.op, flush=True)
        backend.compute(stored.graph.address)
        n_computed += 1
    print(f"computed {n_computed}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
