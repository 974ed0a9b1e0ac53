"""A ring and the models on it, as a program uses them.

    with Ring(["10.0.0.1:50052", "10.0.0.2:50052"]) as ring, ring.load("model.gguf") as model:
        for piece in model.generate("Once upon a time", n_predict=48):
            print(piece, end="")

Everything that fails raises a RinglineError whose text names the node, the command and the cause;
the process lives, and a new Ring over other nodes may be made at once.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final

from ringline.client.edge import Path
from ringline.client.ring import RemoteDevices
from ringline.client.thin import Parts
from ringline.engine.local_nodes import LocalNodes
from ringline.engine.model_size import ModelSize
from ringline.engine.placement import Candidate, Stage, balanced_shares, order_devices
from ringline.engine.plan import choose_devices, split_layers
from ringline.engine.ring_model import (
    DEFAULT_BATCH,
    DEFAULT_CONTEXT,
    DEFAULT_UBATCH,
    PlacedModel,
    RingModel,
    explained,
)
from ringline.errors import CallerError
from ringline.ggml.devices import cpu_device
from ringline.llama.model import Model
from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN, TlsFiles

__all__ = [
    "CPU",
    "DEFAULT_BATCH",
    "DEFAULT_CONTEXT",
    "DEFAULT_UBATCH",
    "Ring",
    "RingModel",
    "Stage",
]

#: the name that stands for this machine's own CPU in a list of devices.
CPU: Final = "CPU"


class Ring:
    """Nodes whose devices run a model together; no nodes means this machine's CPU alone.

    A context manager. Models that are still open are closed with it.
    """

    def __init__(
        self,
        nodes: Sequence[str | Endpoint] = (),
        *,
        path: Path | None = None,
        parts: Parts | None = None,
        tls: TlsFiles | None = None,
    ) -> None:
        """Connect to every node.

        Args:
            nodes: endpoints, `host:port`, in the order of the stages.
            path: the best path that hidden states may take from node to node; None: the best that
                the nodes have, or the hub where RINGLINE_P2P=0.
            parts: which parts of a thin coordinator are used; None: all, or as RINGLINE_PARTS says.
            tls: our certificate and the ring's CA, PLAIN: no TLS; None: as RINGLINE_TLS_CERT,
                RINGLINE_TLS_KEY and RINGLINE_TLS_CA say.

        Raises:
            CallerError: an endpoint or a file cannot be read.
            NetworkError, PeerError: a node cannot be used.
        """
        endpoints = [node if isinstance(node, Endpoint) else Endpoint.parse(node) for node in nodes]
        self._resources = ExitStack()
        self.remote = self._resources.enter_context(
            RemoteDevices(endpoints, path=path, parts=parts, tls=tls)
        )

    @classmethod
    def local(cls, stages: int = 3, *, n_threads: int | None = None) -> Ring:
        """A ring of nodes of its own: `stages` processes on this machine, ended with the ring.

        Raises:
            NetworkError: a node did not start.
        """
        nodes = LocalNodes(stages, n_threads=n_threads)
        try:
            ring = cls(nodes.endpoints, tls=PLAIN)
        except BaseException:
            nodes.close()
            raise
        ring._own(nodes)
        return ring

    def _own(self, nodes: LocalNodes) -> None:
        """End these nodes when the ring closes, after the connections to them."""
        stack = ExitStack()
        stack.callback(nodes.close)
        stack.push(self._resources.pop_all())
        self._resources = stack

    @property
    def devices(self) -> list[str]:
        """Names of the remote devices, in order: RPC0, RPC1, ..."""
        return [device.name for device in self.remote.devices]

    def load(
        self,
        path: str | os.PathLike[str],
        *,
        devices: Sequence[str] = (),
        tensor_split: Sequence[float] = (),
        n_gpu_layers: int = -1,
        n_ctx: int = DEFAULT_CONTEXT,
        n_batch: int = DEFAULT_BATCH,
        n_ubatch: int = DEFAULT_UBATCH,
        n_threads: int | None = None,
        repack: bool = True,
        progress: Callable[[float], bool | None] | None = None,
    ) -> RingModel:
        """Load a GGUF file over the ring, with one context for one prompt at a time.

        Args:
            path: the file, or the first of its shards.
            devices: names in the order of the stages; empty: all remote devices.
            tensor_split: relative share of layers of each device; empty: by time (`balance`).
            n_gpu_layers: layers on the devices, counted from the end; negative: all.
            n_ctx: context, tokens; 0: what the model was trained for.
            n_batch: most tokens in one decode.
            n_ubatch: most tokens in one piece of it; the pieces go through the stages one by one.
            n_threads: CPU threads of this process; None: half of the processors.
            repack: whether this machine's CPU may re-order its weights for speed; off where its
                results are compared bit by bit with those of nodes, which do not.
            progress: gets the loaded share, 0 to 1; returns False to stop.

        Raises:
            CallerError: a name, a share or the file cannot be used. NetworkError, PeerError: a node
                failed. LibraryError: the local ggml or libllama cannot be used.
        """
        placed = self.place(
            path,
            devices=devices,
            tensor_split=tensor_split,
            n_gpu_layers=n_gpu_layers,
            n_ctx=n_ctx,
            n_threads=n_threads,
            repack=repack,
            progress=progress,
        )
        try:
            context = placed.context(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch)
        except BaseException:
            placed.close()
            raise
        return RingModel(self, placed, context)

    def place(
        self,
        path: str | os.PathLike[str],
        *,
        devices: Sequence[str] = (),
        tensor_split: Sequence[float] = (),
        n_gpu_layers: int = -1,
        n_ctx: int = DEFAULT_CONTEXT,
        n_threads: int | None = None,
        repack: bool = True,
        progress: Callable[[float], bool | None] | None = None,
    ) -> PlacedModel:
        """Load a GGUF file over the ring, without a context: for an engine.

        Args:
            path: the file, or the first of its shards.
            devices: as for load(), and so are the others.
            tensor_split: relative share of layers of each device.
            n_gpu_layers: layers on the devices.
            n_ctx: tokens of context of all contexts together, for which room is left.
            n_threads: CPU threads of each context.
            repack: whether this machine's CPU may re-order its weights.
            progress: gets the loaded share.

        Raises:
            RinglineError: as load().
        """
        chosen, reason = self._choose(devices)
        if len(tensor_split) > len(chosen):
            raise CallerError(f"{len(tensor_split)} shares for {len(chosen)} devices")
        shares = list(tensor_split)
        if shares:  # missing ones are 0, as in llama.cpp
            shares += [0.0] * (len(chosen) - len(shares))
        elif len(chosen) > 1:
            size = ModelSize.read(pathlib.Path(path))
            shares = balanced_shares(size, chosen, n_gpu_layers=n_gpu_layers, n_ctx=n_ctx)
        model = explained(
            self.remote,
            lambda: Model.load(
                path,
                devices=[self._address(candidate.device) for candidate in chosen],
                tensor_split=shares,
                n_gpu_layers=n_gpu_layers,
                repack=repack,
                progress=progress,
                check=self.remote.check,
            ),
        )
        self.before_close(model.close)
        stages = _stages(chosen, shares, n_gpu_layers, model.n_layer)
        threads = n_threads or max(1, (os.cpu_count() or 2) // 2)
        return PlacedModel(self.remote, model, stages, reason, threads)

    def before_close(self, close: Callable[[], None]) -> None:
        """Call this when the ring closes, before what was opened earlier is closed."""
        self._resources.callback(close)

    def close(self) -> None:
        """Close models, connections and own nodes; may be called again."""
        self._resources.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _choose(self, devices: Sequence[str]) -> tuple[list[Candidate], str]:
        """The devices to use in the order of the stages, and why it is that order."""
        if not devices:
            return order_devices([self._candidate(name) for name in self.devices])
        names = choose_devices(devices, [*self.devices, CPU])
        return [self._candidate(name) for name in names], "devices in the order named"

    def _candidate(self, name: str) -> Candidate:
        if name == CPU:
            return Candidate(CPU, "", cpu_device().memory()[0], CPU)
        device = self.remote.devices[self.devices.index(name)]
        return Candidate(name, str(device.node.endpoint), device.memory()[0], device.facts.kind)

    def _address(self, name: str) -> int:
        if name == CPU:
            return cpu_device().address
        return self.remote.handles[self.devices.index(name)].address


def _stages(
    chosen: Sequence[Candidate], shares: Sequence[float], n_gpu_layers: int, n_layer: int
) -> list[Stage]:
    if not chosen:
        return [Stage(CPU, "", n_layer + 1)]
    counts = split_layers(n_layer, n_gpu_layers, shares or [1.0] * len(chosen))
    return [Stage(c.device, c.endpoint, n) for c, n in zip(chosen, counts, strict=True)]
