"""A real decode step's graph, timed on its way to the wire and back. Sizes are bytes.

The graph is the larger one of those that libllama builds for one token of a model in two stages.
Encoding is timed inside the callback that computes it, where its structs are alive. For decoding
the buffers are made again in this process: never filled, so they take no memory.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from ringline.bench.report import GraphFigures
from ringline.client.counters import Counters
from ringline.client.device import RemoteBuffer, RemoteDevice
from ringline.client.failures import Failures
from ringline.client.node import Node
from ringline.client.tensors import graph_body
from ringline.client.transfer import Transfers
from ringline.errors import CallerError
from ringline.ggml.devices import Buffer, cpu_device
from ringline.ggml.graph import gather
from ringline.ggml.registry import Registry as Devices
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.net.endpoint import Endpoint
from ringline.server.buffers import Registry
from ringline.server.checked import CheckedStructures
from ringline.server.graphs import build_graph
from ringline.wire.graph import GraphBody

__all__ = ["measure_graph"]

_REPEAT: Final = 100
_TOKEN: Final = 1
_CONTEXT: Final = 512


def measure_graph(model: Path, endpoints: Sequence[Endpoint]) -> GraphFigures:
    """Time the encoding and the decoding of a decode step's graph.

    Args:
        model: a GGUF file; its layers are spread evenly over the nodes.
        endpoints: nodes, one for each stage.

    Raises:
        NetworkError, PeerError: a node failed. CallerError: the model cannot be loaded, or this
            machine has no room for its buffers.
    """
    with _observed(endpoints) as (devices, registry, check):
        addresses = [handle.address for handle in registry.devices]
        shares = [1.0] * len(devices)
        with (
            Model.load(model, devices=addresses, tensor_split=shares, check=check) as loaded,
            Context(loaded, n_ctx=_CONTEXT, n_batch=8, n_ubatch=8, n_threads=1, check=check) as run,
        ):
            batch = Batch(1)
            for position in range(2):  # the second step's graph is one like all that follow
                batch.clear()
                batch.add_run([_TOKEN], position, logits_last=True)
                for device in devices:
                    device.observing = position > 0
                run.decode(batch)
        encodings = [device.encoding for device in devices if device.encoding is not None]
        return _figures(max(encodings, key=lambda encoding: len(encoding.body.tensors)))


@dataclass(frozen=True, slots=True)
class _Encoding:
    """An observed graph: its body, the seconds to encode it, and base and size of each buffer."""

    body: GraphBody
    seconds: float
    buffers: Sequence[tuple[int, int]]


class _Observed(RemoteDevice):
    """A remote device that times the encoding of what it is asked to compute."""

    def __init__(self, number: int, node: Node, failures: Failures) -> None:
        super().__init__(number, node, node.devices[0], Transfers(), failures)
        self.observing = False
        self.encoding: _Encoding | None = None
        self._buffers: list[tuple[int, int]] = []

    def alloc_buffer(self, size: int) -> RemoteBuffer | None:
        """Make a buffer, and remember it."""
        buffer = super().alloc_buffer(size)
        if buffer is not None:
            self._buffers.append((buffer.base(), buffer.size))
        return buffer

    def compute(self, graph: int) -> None:
        """Compute a graph; if it is to be observed, encode it a number of times before."""
        if self.observing:
            seconds = _median(lambda: self._encode(graph).pack())
            self.encoding = _Encoding(self._encode(graph), seconds, tuple(self._buffers))
        super().compute(graph)

    def _encode(self, graph: int) -> GraphBody:
        return graph_body(self.facts.index, gather(graph), self.node)


@contextmanager
def _observed(
    endpoints: Sequence[Endpoint],
) -> Iterator[tuple[list[_Observed], Devices, Callable[[], None]]]:
    """The first device of each node, all of them for C, and what raises their errors."""
    with ExitStack() as stack:
        failures, counters = Failures(), Counters()
        devices = []
        for number, endpoint in enumerate(endpoints):
            node = Node(endpoint, counters)
            stack.callback(node.close)
            devices.append(_Observed(number, node, failures))
        registry = Devices(devices)
        stack.callback(registry.close)
        yield devices, registry, failures.check


def _figures(encoding: _Encoding) -> GraphFigures:
    with ExitStack() as stack:
        registry = Registry(session=1)
        body = _moved(encoding, registry, stack)
        raw = body.pack()
        checked = CheckedStructures()

        def again() -> object:
            return build_graph(GraphBody.unpack(raw), registry, checked=checked)

        return GraphFigures(
            n_tensors=len(body.tensors),
            n_nodes=len(body.nodes),
            size=len(raw),
            encode_ms=1e3 * encoding.seconds,
            decode_ms=1e3 * _median(lambda: build_graph(GraphBody.unpack(raw), registry)),
            again_ms=1e3 * _median(again),
        )


def _moved(encoding: _Encoding, registry: Registry, stack: ExitStack) -> GraphBody:
    """The observed graph, its tensors moved to buffers of the same sizes in `registry`."""
    body = encoding.body
    records = body.tensors.copy()
    for base, size in encoding.buffers:
        offsets = body.tensors["data"] - np.uint64(base)  # wraps where it lies before the buffer
        within = offsets < size
        added = registry.add(0, _buffer(size, stack))
        assert added is not None  # a node has the same limits
        records["buffer"][within] = added.handle
        records["data"][within] = offsets[within] + np.uint64(added.base)
    return GraphBody(body.device, body.nodes, records)


def _buffer(size: int, stack: ExitStack) -> Buffer:
    buffer = cpu_device().alloc_buffer(size)
    if buffer is None:
        raise CallerError(f"this machine has no room for a buffer of {size} bytes")
    stack.callback(buffer.close)
    return buffer


def _median(call: Callable[[], object]) -> float:
    """The median of the seconds that a call takes."""
    seconds = []
    for _ in range(_REPEAT):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)
