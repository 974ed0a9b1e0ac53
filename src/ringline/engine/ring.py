"""A ring and the models on it, as a program uses them.

    with Ring(["10.0.0.1:50052", "10.0.0.2:50052"]) as ring, ring.load("model.gguf") as model:
        for piece in model.generate("Once upon a time", n_predict=48):
            print(piece, end="")

Everything that fails raises a RinglineError whose text names the node, the command and the cause;
the process lives, and a new Ring over other nodes may be made at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Final, TypeVar

from ringline.client.counters import Window
from ringline.client.edge import Path
from ringline.client.ring import RemoteDevices
from ringline.engine.generation import Generation, PromptProgress
from ringline.engine.local_nodes import LocalNodes
from ringline.engine.plan import choose_devices, split_layers
from ringline.engine.ring_context import RingContext
from ringline.errors import CallerError, RinglineError
from ringline.ggml.devices import cpu_device
from ringline.llama.model import Model
from ringline.llama.sampler import Sampler, SamplingParams
from ringline.net.endpoint import Endpoint

__all__ = ["Ring", "RingModel", "Stage"]

T = TypeVar("T")

#: the name that stands for this machine's own CPU in a list of devices.
CPU: Final = "CPU"
DEFAULT_CONTEXT: Final = 4096
DEFAULT_BATCH: Final = 2048
DEFAULT_UBATCH: Final = 512


@dataclass(frozen=True, slots=True)
class Stage:
    """One device of a plan: its name, where it is ("" for this machine), its number of layers."""

    device: str
    endpoint: str
    n_layers: int


class Ring:
    """Nodes whose devices run a model together; no nodes means this machine's CPU alone.

    A context manager. Models that are still open are closed with it.
    """

    def __init__(self, nodes: Sequence[str | Endpoint] = (), *, path: Path | None = None) -> None:
        """Connect to every node.

        Args:
            nodes: endpoints, `host:port`, in the order of the stages.
            path: the best path that hidden states may take from node to node; None: the best that
                the nodes have, or the hub where RINGLINE_P2P=0.

        Raises:
            CallerError: an endpoint cannot be read. NetworkError, PeerError: a node cannot be used.
        """
        endpoints = [node if isinstance(node, Endpoint) else Endpoint.parse(node) for node in nodes]
        self._resources = ExitStack()
        self.remote = self._resources.enter_context(RemoteDevices(endpoints, path=path))

    @classmethod
    def local(cls, stages: int = 3, *, n_threads: int | None = None) -> Ring:
        """A ring of nodes of its own: `stages` processes on this machine, ended with the ring.

        Raises:
            NetworkError: a node did not start.
        """
        nodes = LocalNodes(stages, n_threads=n_threads)
        try:
            ring = cls(nodes.endpoints)
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
        """Load a GGUF file over the ring.

        Args:
            path: the file, or the first of its shards.
            devices: names in the order of the stages; empty: all remote devices.
            tensor_split: relative share of layers of each device; empty: by free memory.
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
        chosen = choose_devices(devices, [*self.devices, CPU]) if devices else self.devices
        if len(tensor_split) > len(chosen):
            raise CallerError(f"{len(tensor_split)} shares for {len(chosen)} devices")
        threads = n_threads or max(1, (os.cpu_count() or 2) // 2)
        stack = ExitStack()
        try:
            model = stack.enter_context(
                self._load(path, chosen, tensor_split, n_gpu_layers, repack, progress)
            )
            context = stack.enter_context(
                self._guarded(
                    lambda: RingContext(
                        model,
                        self.remote,
                        n_ctx=n_ctx,
                        n_batch=n_batch,
                        n_ubatch=n_ubatch,
                        n_threads=threads,
                    )
                )
            )
        except BaseException:
            stack.close()
            raise
        self._resources.push(stack)
        stages = self._stages(chosen, tensor_split, n_gpu_layers, model.n_layer)
        return RingModel(self, model, context, stages, stack)

    def close(self) -> None:
        """Close models, connections and own nodes; may be called again."""
        self._resources.close()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _load(
        self,
        path: str | os.PathLike[str],
        chosen: Sequence[str],
        tensor_split: Sequence[float],
        n_gpu_layers: int,
        repack: bool,
        progress: Callable[[float], bool | None] | None,
    ) -> Model:
        return self._guarded(
            lambda: Model.load(
                path,
                devices=[self._address(name) for name in chosen],
                tensor_split=tensor_split,
                n_gpu_layers=n_gpu_layers,
                repack=repack,
                progress=progress,
                check=self.remote.check,
            )
        )

    def _guarded(self, call: Callable[[], T]) -> T:
        """Run a call into libllama; where it gives up, the node's own reason wins."""
        try:
            return call()
        except RinglineError:
            self.remote.failures.explain()
            raise

    def _address(self, name: str) -> int:
        if name == CPU:
            return cpu_device().address
        return self.remote.handles[self.devices.index(name)].address

    def _stages(
        self, chosen: Sequence[str], shares: Sequence[float], n_gpu_layers: int, n_layer: int
    ) -> list[Stage]:
        places = {d.name: str(d.node.endpoint) for d in self.remote.devices}
        if not chosen:
            return [Stage(CPU, "", n_layer + 1)]
        weights = list(shares) or [
            float(cpu_device().memory()[0] if name == CPU else self._free(name)) for name in chosen
        ]
        counts = split_layers(n_layer, n_gpu_layers, weights)
        return [Stage(n, places.get(n, ""), c) for n, c in zip(chosen, counts, strict=True)]

    def _free(self, name: str) -> int:
        return self.remote.devices[self.devices.index(name)].memory()[0]


class RingModel:
    """A model loaded over a ring, with one context. A context manager.

    Attributes:
        model: its facts and vocabulary.
        context: decodes.
        stages: which device holds how many layers.
        window: the traffic of decode steps (one token after the prompt) so far.
    """

    def __init__(
        self, ring: Ring, model: Model, context: RingContext, stages: list[Stage], stack: ExitStack
    ) -> None:
        self.ring = ring
        self.model = model
        self.context = context
        self.stages = stages
        self.window = Window(ring.remote.counters)
        self._stack = stack

    def generate(
        self,
        prompt: str,
        *,
        n_predict: int = -1,
        sampling: SamplingParams | None = None,
        progress: PromptProgress | None = None,
        special: bool = False,
    ) -> Generation:
        """Continue a prompt: iterate over the result for pieces of text.

        Args:
            prompt: text; the names of control tokens in it are understood.
            n_predict: most tokens; negative: until the text ends or the context is full.
            sampling: how tokens are chosen; None: greedy.
            progress: called after each chunk of the prompt with tokens done and in all.
            special: whether control tokens are shown in the text.

        Raises:
            CallerError: the prompt is empty or does not fit. While iterating also NetworkError and
                PeerError: a node failed.
        """
        tokens = self.model.tokenize(prompt, parse_special=True)
        return Generation(
            self.context,
            Sampler(self.model, sampling or SamplingParams(temperature=0.0)),
            tokens,
            n_predict=n_predict,
            progress=progress,
            special=special,
            observer=self.window,
        )

    def close(self) -> None:
        """Free the context and the model, here and on the nodes; may be called again."""
        self._stack.close()

    def __enter__(self) -> RingModel:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()
