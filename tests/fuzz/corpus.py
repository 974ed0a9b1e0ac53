"""Recorded scenes: what a node holds and computes for a model, freed of the run it came from.

Handles and addresses differ from session to session, ids from run to run. In a scene buffer k (from
1) has the handle k and begins at k << 40, and the id of a tensor is its place in the graph, from 1.
session.py puts a session's own handles and addresses in their place. Sizes are bytes.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ringline.wire.commands import Command
from ringline.wire.graph import GraphBody
from ringline.wire.messages import AllocBuffer, BufferGetBase, SetTensor
from ringline.wire.tensor import RECORD, Tensor
from tests.fuzz.models import ALL, ENCODER, OPS, make, run, run_sampled, ways_of
from tests.fuzz.recording import Said, recorded
from tests.op_cases import CASES, ROOM, body_of, graph_of
from tests.server_client import Block

SHIFT = 40
#: how far outside a buffer an address still counts as relative to it.
SLACK = 1 << 24
#: libllama's names hold those of the devices, and so our proxy's port.
_PORT = re.compile(rb"127\.0\.0\.1:\d+")


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes for a place in a buffer, whose number counts from 1."""

    buffer: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Graph:
    """One graph of a scene, and what was written since the one before."""

    body: GraphBody
    writes: tuple[Write, ...]


@dataclass(slots=True)
class Scene:
    """What one client does on a node.

    Attributes:
        name: of the model and how it was run.
        sizes: of the buffers.
        weights: what is written before the first graph.
        graphs: those that differ in anything but their data.
        said: all commands as they were, for frames.py.
    """

    name: str
    sizes: list[int] = field(default_factory=list)
    weights: list[Write] = field(default_factory=list)
    graphs: list[Graph] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)


def record_scenes(node: str, names: Sequence[str] = ALL) -> list[Scene]:
    """Run small models over a node, and keep what was said; with and without flash attention."""
    with tempfile.TemporaryDirectory(prefix="ringline-fuzz-") as folder:
        scenes = [op_scene() for name in names if name in OPS]
        for name in names:
            if name in OPS:
                continue
            path = make(Path(folder) / "model.gguf", name)
            for flash in ways_of(name):
                with recorded(node) as (endpoint, said):
                    run(endpoint, path, flash=flash, pooled=name == ENCODER)
                title = f"{name}, {'flash' if flash else 'plain'} attention"
                scenes.append(_scene(title, said))
        return scenes


def op_scene() -> Scene:
    """The good graphs of tests/op_cases.py: what no small model of ours computes is there too."""
    most = max(len(case.sources) for case in CASES.values()) + 2
    block = Block(1, 1 << SHIFT, most * ROOM)
    graphs = [Graph(body_of(graph_of(case, block)), ()) for case in CASES.values()]
    return Scene(OPS[0], [block.size], [], graphs)


def record_frames(nodes: Sequence[str]) -> list[Said]:
    """The commands of a thin coordinator over two nodes, those to both, each by itself."""
    with tempfile.TemporaryDirectory(prefix="ringline-fuzz-") as folder, ExitStack() as stack:
        path = make(Path(folder) / "model.gguf", "llama q4")
        ways = [stack.enter_context(recorded(node)) for node in nodes]
        run_sampled([endpoint for endpoint, _ in ways], path)
    return [entry for _, said in ways for entry in said]


def _scene(name: str, said: list[Said]) -> Scene:
    scene, plain = Scene(name, said=said), _Plain(said)
    writes: list[Write] = []
    known: set[bytes] = set()
    scene.sizes = plain.sizes
    for entry in said:
        if entry.command is Command.SET_TENSOR:
            writes.extend(plain.write(entry.body))
        elif entry.command is Command.GRAPH_COMPUTE:
            body = plain.graph(entry.body)
            if not scene.weights:
                scene.weights = writes
                writes = _inputs(body, writes)
            packed = bytes(body.pack())
            if packed not in known:
                known.add(packed)
                scene.graphs.append(Graph(body, tuple(writes)))
            writes = []
        elif entry.command is Command.GRAPH_RECOMPUTE:
            writes = []
    return scene


def _inputs(body: GraphBody, writes: list[Write]) -> list[Write]:
    """Those of the first writes that lie where graphs put their results: others overwrite them."""
    results = body.tensors["buffer"][body.tensors["op"] != 0]
    compute = int(np.bincount(results.astype(np.int64)).argmax())
    return [write for write in writes if write.buffer == compute]


class _Plain:
    """From one run's handles, addresses and ids to those of a scene."""

    def __init__(self, said: list[Said]) -> None:
        handles, sizes, bases = _buffers(said)
        self.sizes = sizes
        self._numbers = {handle: number for number, handle in enumerate(handles, 1)}
        self._bases = bases

    def write(self, body: bytes) -> Iterator[Write]:
        """A SET_TENSOR; one for a buffer that was made for a moment is left out."""
        head, size = SetTensor.unpack(body), SetTensor.LAYOUT.size
        tensor = Tensor.unpack(head.tensor)
        number = self._numbers.get(tensor.buffer)
        if number is not None:
            offset = tensor.data - self._bases[tensor.buffer] + head.offset
            yield Write(number, offset, body[size:])

    def graph(self, raw: bytes) -> GraphBody:
        """A graph in the words of the scene."""
        body = _in_order(GraphBody.unpack(raw))
        tensors = body.tensors.copy()
        for handle, number in self._numbers.items():
            here = body.tensors["buffer"] == np.uint64(handle)
            base = np.uint64(self._bases[handle])
            moved = tensors["data"][here] - base + np.uint64(number << SHIFT)
            tensors["data"][here] = moved
            tensors["buffer"][here] = number
        tensors["name"] = [_PORT.sub(b"node", bytes(name)) for name in tensors["name"]]
        ids = body.tensors["id"]
        for name in ("id", "src", "view_src"):
            tensors[name] = _places(ids, body.tensors[name])
        return GraphBody(body.device, _places(ids, body.nodes), tensors)


def _in_order(body: GraphBody) -> GraphBody:
    """The same graph with its tensors as the nodes reach them; a client sends them as they lie."""
    tensors = body.tensors
    places = {int(number): place for place, number in enumerate(tensors["id"])}
    order: list[int] = []
    seen: set[int] = set()

    def visit(number: int) -> None:
        place = places.get(number)
        if place is None or place in seen:  # CPY may be a source of itself
            return
        seen.add(place)
        for source in (*tensors["src"][place], tensors["view_src"][place]):
            visit(int(source))
        order.append(place)

    for node in body.nodes:
        visit(int(node))
    return GraphBody(body.device, body.nodes, tensors[order])


def _buffers(said: list[Said]) -> tuple[list[int], list[int], dict[int, int]]:
    """Handles and sizes of the buffers in the order of their making, and their bases by handle."""
    handles, sizes, bases = [], [], {}
    for entry in said:
        if entry.command is Command.ALLOC_BUFFER and entry.reply:
            made = AllocBuffer.Reply.unpack(entry.reply)
            if made.handle:
                handles.append(made.handle)
                sizes.append(made.size)
        elif entry.command is Command.BUFFER_GET_BASE and entry.reply:
            handle = BufferGetBase.unpack(entry.body).handle
            bases[handle] = BufferGetBase.Reply.unpack(entry.reply).value
    return handles, sizes, bases


def _places(ids: npt.NDArray[np.uint64], wanted: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The place of each id in the graph, from 1; 0 stays 0."""
    order = np.argsort(ids)
    found = order[np.minimum(np.searchsorted(ids[order], wanted), len(ids) - 1)]
    places = np.where(ids[found] == wanted, found + 1, 0)
    return np.where(wanted == 0, 0, places).astype(np.uint64)


def pack(device: int, nodes: npt.NDArray[np.uint64], tensors: npt.NDArray[np.void]) -> bytes:
    """A body from its parts."""
    assert tensors.dtype == RECORD
    return bytes(GraphBody(device, nodes, tensors).pack())
