"""Flags of the commands that run a model over a ring in this process, and what they stand for."""

from __future__ import annotations

from typing import Annotated

import typer

from ringline.engine.plan import parse_split
from ringline.engine.ring import Ring
from ringline.errors import CallerError
from ringline.net.endpoint import parse_endpoints
from ringline.net.tls import PLAIN, TlsFiles

__all__ = [
    "BatchSize",
    "Device",
    "GpuLayers",
    "Groups",
    "HubRepo",
    "LocalStages",
    "ModelFile",
    "Nodes",
    "Predict",
    "Seed",
    "TensorSplit",
    "Threads",
    "check_nodes",
    "open_ring",
    "shares",
]

ModelFile = Annotated[str | None, typer.Option("-m", "--model", help="A GGUF file.")]
HubRepo = Annotated[
    str | None, typer.Option("-hf", "--hf-repo", help="A model of the hub, REPO[:QUANT].")
]
Nodes = Annotated[str, typer.Option("--rpc", help="Nodes, host:port, with commas.")]
LocalStages = Annotated[
    int, typer.Option("--local-stages", help="Start so many nodes on this machine.", min=0)
]
Device = Annotated[
    str, typer.Option("--device", help="Devices in the order of the stages: RPC0,RPC1,CPU.")
]
TensorSplit = Annotated[
    str, typer.Option("-ts", "--tensor-split", help="Share of layers of each device: 2,1,1.")
]
GpuLayers = Annotated[
    int, typer.Option("-ngl", "--n-gpu-layers", help="Layers on the devices; -1: all.")
]
BatchSize = Annotated[
    int, typer.Option("-b", "--batch-size", min=1, help="Most tokens in one decode.")
]
Groups = Annotated[
    int | None,
    typer.Option(
        "--groups",
        min=1,
        show_default="2 where there are several stages, else 1",
        help="Steps in flight; each has a context and some of the requests.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(
        "-t",
        "--threads",
        min=1,
        show_default="half of the processors",
        help="CPU threads, of local stages too.",
    ),
]
Predict = Annotated[
    int, typer.Option("-n", "--n-predict", help="Most tokens; -1: until the text ends.")
]
Seed = Annotated[int, typer.Option("--seed", help="For sampling; -1: a random one.")]


def open_ring(rpc: str, local_stages: int, threads: int | None, tls: tuple[str, str, str]) -> Ring:
    """The ring that --rpc or --local-stages name; without them this machine's CPU alone.

    Args:
        rpc: endpoints of nodes.
        local_stages: how many nodes to start.
        threads: CPU threads of local stages.
        tls: the files of --tls-cert, --tls-key and --tls-ca, for the nodes of `rpc`.

    Raises:
        CallerError: both are given, or a file cannot be used.
        NetworkError, PeerError: a node cannot be used.
    """
    check_nodes(rpc, local_stages)
    if local_stages:
        return Ring.local(local_stages, n_threads=threads)
    return Ring(parse_endpoints(rpc), tls=TlsFiles.chosen(*tls) if rpc else PLAIN)


def check_nodes(rpc: str, local_stages: int) -> None:
    """Nodes come from one of two flags.

    Raises:
        CallerError: both are given.
    """
    if rpc and local_stages:
        raise CallerError("--rpc and --local-stages are two ways to get nodes: use one of them")


def shares(text: str, n_devices: int) -> list[float]:
    """What -ts gives each device; empty: nothing was given.

    Raises:
        CallerError: it cannot be read, or there are no devices.
    """
    if not text:
        return []
    if not n_devices:
        raise CallerError("-ts splits layers over devices, and there are none: add --rpc")
    return parse_split(text, n_devices)
