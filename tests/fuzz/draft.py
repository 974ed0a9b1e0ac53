"""A graph under change, and how the mutators choose: which tensor, and which value instead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Final

import numpy as np
import numpy.typing as npt

from ringline.ggml.types import tables
from ringline.wire.graph import GraphBody
from tests.fuzz.corpus import Scene

U32, U64 = 1 << 32, 1 << 64
#: where rules and arithmetic have their edges.
EDGES: Final = (
    0,
    1,
    2,
    3,
    7,
    31,
    32,
    33,
    255,
    256,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    U32 - 1,
)
EDGES_64: Final = (0, 1, 31, 32, 1 << 31, U32, 1 << 40, (1 << 63) - 1, 1 << 63, U64 - 32, U64 - 1)


@dataclass(slots=True)
class Draft:
    """A graph under change, in the words of its scene.

    Attributes:
        notes: what was changed, in words; touched: places of the tensors that were.
    """

    scene: Scene
    device: int
    nodes: list[int]
    tensors: npt.NDArray[np.void]
    notes: list[str] = field(default_factory=list)
    touched: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, scene: Scene, body: GraphBody) -> Draft:
        """A copy of a recorded graph."""
        return cls(scene, body.device, [int(node) for node in body.nodes], body.tensors.copy())

    def body(self) -> GraphBody:
        """The graph as it is now."""
        return GraphBody(self.device, np.array(self.nodes, np.uint64), self.tensors)

    def name(self, place: int) -> str:
        """A tensor in words: its op and its name."""
        names = tables().op_names
        number = int(self.tensors["op"][place])
        op = names[number] if number < len(names) else str(number)
        return f"{op} {bytes(self.tensors['name'][place])!r}"


Mutator = Callable[[Draft, Random], str]


def pick(draft: Draft, luck: Random) -> int:
    """The place of a tensor: rather a node, or a source of one, than a leaf that nobody uses."""
    count = len(draft.tensors)
    if draft.nodes and luck.random() < 0.7:
        place = luck.choice(draft.nodes) - 1
        if luck.random() < 0.4 and 0 <= place < count:
            sources = [int(s) - 1 for s in draft.tensors["src"][place] if s]
            place = luck.choice(sources) if sources else place
        if 0 <= place < count:
            return place
    return luck.randrange(count)


def near(value: int, luck: Random, most: int, edges: Sequence[int]) -> int:
    """A value that differs from this one: a little, by a factor, or to an edge."""
    choice = luck.randrange(6)
    if choice == 0:
        return (value + luck.choice((-1, 1))) % most
    if choice == 1:
        return (value + luck.choice((-32, -8, -4, 4, 8, 32))) % most
    if choice == 2:
        return value * luck.choice((2, 3, 4, 32)) % most
    if choice == 3:
        return value // luck.choice((2, 3, 4, 32))
    return luck.choice(edges) if choice == 4 else luck.randrange(most)
