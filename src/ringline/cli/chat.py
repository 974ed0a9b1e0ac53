"""`ringline chat`: a conversation in a terminal, with a ring of one's own or a running server."""

from __future__ import annotations

from typing import Annotated

import typer

from ringline.cli.chat_engine import EnginePartner
from ringline.cli.chat_partner import Partner
from ringline.cli.chat_server import ServerPartner
from ringline.cli.chat_talk import Conversation
from ringline.cli.chat_terminal import is_terminal, read_lines, show
from ringline.cli.ring_options import (
    BatchSize,
    Device,
    GpuLayers,
    HubRepo,
    LocalStages,
    ModelFile,
    Nodes,
    Predict,
    Seed,
    TensorSplit,
    Threads,
    open_ring,
    shares,
)
from ringline.cli.talk import progress_bar, say, say_stages
from ringline.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringline.engine.engine import Engine
from ringline.engine.job import Request
from ringline.engine.models import resolve_model
from ringline.engine.plan import parse_list
from ringline.engine.ring_model import DEFAULT_BATCH, DEFAULT_CONTEXT
from ringline.errors import CallerError
from ringline.llama.sampler import SamplingParams
from ringline.settings import api_keys

app = typer.Typer(add_completion=False)


@app.command()
def chat(
    model: ModelFile = None,
    hf: HubRepo = None,
    rpc: Nodes = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    local_stages: LocalStages = 0,
    server: Annotated[
        str,
        typer.Option(
            "--server",
            metavar="URL",
            help="Talk to a server with OpenAI's API (ringline api, llama-server) instead.",
        ),
    ] = "",
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            show_default="RINGLINE_API_KEY",
            help="What the server wants to see.",
        ),
    ] = None,
    system: Annotated[
        str, typer.Option("-sys", "--system-prompt", metavar="TEXT", help="The system prompt.")
    ] = "",
    device: Device = "",
    tensor_split: TensorSplit = "",
    n_gpu_layers: GpuLayers = -1,
    ctx_size: Annotated[
        int, typer.Option("-c", "--ctx-size", help="Context in tokens; 0: the model's own.")
    ] = DEFAULT_CONTEXT,
    batch_size: BatchSize = DEFAULT_BATCH,
    threads: Threads = None,
    n_predict: Predict = -1,
    temperature: Annotated[
        float, typer.Option("--temp", help="0 takes the likeliest token, always.")
    ] = 0.8,
    seed: Seed = -1,
) -> None:
    """Chat with a model over a ring, or with a running server.

    /help shows the commands. Ctrl-C stops an answer, Ctrl-D ends the chat, Alt-Enter begins a new
    line. What was typed is kept in the cache folder. Where stdin is no terminal, each of its lines
    is a message; answers go to stdout, everything else to stderr.
    """
    request = Request(n_predict, SamplingParams(temperature, seed=None if seed < 0 else seed))
    if server:
        if model or hf or rpc or local_stages:
            raise CallerError("--server answers with its own model: leave out -m, -hf and --rpc")
        partner = ServerPartner(server, api_key or next(iter(api_keys()), None), request)
        say(f"{partner.model} at {server}")
        _talk(partner, system)
        return
    path = resolve_model(model, hf)
    with open_ring(rpc, local_stages, threads, (tls_cert, tls_key, tls_ca)) as ring:
        devices = parse_list(device)
        with progress_bar("load") as update:
            placed = ring.place(
                path,
                devices=devices,
                tensor_split=shares(tensor_split, len(devices or ring.devices)),
                n_gpu_layers=n_gpu_layers,
                n_ctx=ctx_size,
                n_threads=threads,
                progress=update,
            )
        with Engine(ring, placed, parallel=1, n_ctx=ctx_size, n_batch=batch_size) as engine:
            say_stages(placed.model.description, placed.stages, placed.reason)
            _talk(EnginePartner(engine, request), system)


def _talk(partner: Partner, system: str) -> None:
    if is_terminal():
        say("/help shows the commands, Ctrl-C stops an answer, Ctrl-D ends the chat")
    Conversation(partner, system=system, show=show, say=say).run(read_lines())
