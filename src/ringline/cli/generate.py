"""`ringline generate`: prompts over a ring, text to stdout, everything else to stderr."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from ringline.cli.generate_many import generate_many
from ringline.cli.generate_one import generate_one
from ringline.cli.ring_options import (
    BatchSize,
    Device,
    GpuLayers,
    Groups,
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
from ringline.cli.talk import progress_bar, say_stages, say_traffic
from ringline.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringline.client.counters import Window
from ringline.engine.engine import DEFAULT_PARALLEL, Engine
from ringline.engine.job import Request
from ringline.engine.models import resolve_model
from ringline.engine.placement import PIPELINE_UBATCH
from ringline.engine.plan import parse_list
from ringline.engine.ring import Ring
from ringline.engine.ring_model import (
    DEFAULT_BATCH,
    DEFAULT_CONTEXT,
    DEFAULT_UBATCH,
    PlacedModel,
    RingModel,
)
from ringline.errors import CallerError
from ringline.llama.sampler import SamplingParams
from ringline.settings import stats_wanted

app = typer.Typer(add_completion=False)


@app.command()
def generate(
    model: ModelFile = None,
    hf: HubRepo = None,
    rpc: Nodes = "",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    local_stages: LocalStages = 0,
    device: Device = "",
    tensor_split: TensorSplit = "",
    n_gpu_layers: GpuLayers = -1,
    ctx_size: Annotated[
        int, typer.Option("-c", "--ctx-size", help="Context in tokens; 0: the model's own.")
    ] = DEFAULT_CONTEXT,
    batch_size: BatchSize = DEFAULT_BATCH,
    ubatch_size: Annotated[
        int | None,
        typer.Option(
            "-ub",
            "--ubatch-size",
            min=1,
            show_default=f"{DEFAULT_UBATCH}; many prompts over several stages: {PIPELINE_UBATCH}",
            help="Most tokens in one piece of it.",
        ),
    ] = None,
    threads: Threads = None,
    prompt: Annotated[
        list[str] | None,
        typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; may be given many times."),
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "-f",
            "--file",
            help="A file that holds the prompt; with --parallel 2 and more one a line.",
        ),
    ] = None,
    parallel: Annotated[
        int | None,
        typer.Option(
            "--parallel",
            min=1,
            show_default=f"1 for one prompt, else {DEFAULT_PARALLEL}",
            help="Prompts at once; they share the context, each has an equal part of -c.",
        ),
    ] = None,
    groups: Groups = None,
    n_predict: Predict = -1,
    temperature: Annotated[
        float, typer.Option("--temp", help="0 takes the likeliest token, always.")
    ] = 0.8,
    seed: Seed = -1,
    stats: Annotated[bool, typer.Option("--stats", help="Show traffic per decode step.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object, or a list for many prompts.")
    ] = False,
) -> None:
    """Continue a prompt with a model whose layers are spread over a ring; or many prompts at once.

    One prompt's text is written as it comes. Of many, each is written when it is finished, behind
    its number.
    """
    prompts = _prompts(prompt or [], file, one_a_line=(parallel or 1) > 1)
    path = resolve_model(model, hf)
    request = Request(n_predict, SamplingParams(temperature, seed=None if seed < 0 else seed))
    sizes = _Sizes(ctx_size, batch_size, ubatch_size)
    tls = (tls_cert, tls_key, tls_ca)
    with open_ring(rpc, local_stages, threads, tls) as ring:
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
        if len(prompts) == 1:
            window = _one(ring, placed, prompts[0], request, sizes, as_json)
        else:
            slots = min(parallel or DEFAULT_PARALLEL, len(prompts))
            window = _many(ring, placed, prompts, request, sizes, slots, groups, as_json)
        if stats or stats_wanted():
            say_traffic(window)


class _Sizes(NamedTuple):
    """Tokens of context, of a decode, and of a piece of it."""

    n_ctx: int
    n_batch: int
    n_ubatch: int | None


def _one(
    ring: Ring, placed: PlacedModel, prompt: str, request: Request, sizes: _Sizes, as_json: bool
) -> Window:
    """Run one prompt; the traffic of its decode steps."""
    n_ctx, n_batch, n_ubatch = sizes
    context = placed.context(n_ctx=n_ctx, n_batch=n_batch, n_ubatch=n_ubatch or DEFAULT_UBATCH)
    with RingModel(ring, placed, context) as loaded:
        say_stages(placed.model.description, placed.stages, placed.reason)
        generate_one(loaded, prompt, request, as_json=as_json)
        return loaded.window


def _many(
    ring: Ring,
    placed: PlacedModel,
    prompts: Sequence[str],
    request: Request,
    sizes: _Sizes,
    slots: int,
    groups: int | None,
    as_json: bool,
) -> Window:
    """Run many prompts; the traffic of all their steps, those of the prompts among them."""
    window = Window(ring.remote.counters)
    n_ctx, n_batch, n_ubatch = sizes
    with Engine(
        ring,
        placed,
        parallel=slots,
        groups=groups,
        n_ctx=n_ctx,
        n_batch=n_batch,
        n_ubatch=n_ubatch,
    ) as engine:
        say_stages(placed.model.description, placed.stages, placed.reason)
        window.start()
        generate_many(engine, prompts, request, as_json=as_json)
        window.stop()
        window.steps = sum(group.steps for group in engine.metrics().groups)
    return window


def _prompts(texts: Sequence[str], file: Path | None, *, one_a_line: bool) -> list[str]:
    """The prompts; of a file the whole text, or its lines that are not empty."""
    if bool(texts) == (file is not None):
        raise CallerError("give a prompt: either -p TEXT or -f FILE")
    if file is None:
        return list(texts)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise CallerError(f"the prompt file {file} cannot be read: {reason}") from None
    lines = [line for line in text.splitlines() if line.strip()] if one_a_line else [text]
    if not lines:
        raise CallerError(f"the prompt file {file} has no line with a prompt in it")
    return lines
