"""`ringline generate`: one prompt over a ring, text to stdout, everything else to stderr."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ringline.cli.tables import print_table, traffic_table
from ringline.engine.generation import Generation
from ringline.engine.models import resolve_model
from ringline.engine.plan import parse_list, parse_split
from ringline.engine.ring import DEFAULT_BATCH, DEFAULT_CONTEXT, DEFAULT_UBATCH, Ring, RingModel
from ringline.errors import CallerError
from ringline.llama.sampler import SamplingParams
from ringline.net.endpoint import parse_endpoints
from ringline.settings import stats_wanted

app = typer.Typer(add_completion=False)
_talk = Console(stderr=True, highlight=False)


@app.command()
def generate(
    model: Annotated[str | None, typer.Option("-m", "--model", help="A GGUF file.")] = None,
    hf: Annotated[
        str | None, typer.Option("-hf", "--hf-repo", help="A model of the hub, REPO[:QUANT].")
    ] = None,
    rpc: Annotated[str, typer.Option("--rpc", help="Nodes, host:port, with commas.")] = "",
    local_stages: Annotated[
        int, typer.Option("--local-stages", help="Start so many nodes on this machine.", min=0)
    ] = 0,
    device: Annotated[
        str, typer.Option("--device", help="Devices in the order of the stages: RPC0,RPC1,CPU.")
    ] = "",
    tensor_split: Annotated[
        str, typer.Option("-ts", "--tensor-split", help="Share of layers of each device: 2,1,1.")
    ] = "",
    n_gpu_layers: Annotated[
        int, typer.Option("-ngl", "--n-gpu-layers", help="Layers on the devices; -1: all.")
    ] = -1,
    ctx_size: Annotated[
        int, typer.Option("-c", "--ctx-size", help="Context in tokens; 0: the model's own.")
    ] = DEFAULT_CONTEXT,
    batch_size: Annotated[
        int, typer.Option("-b", "--batch-size", min=1, help="Most tokens in one decode.")
    ] = DEFAULT_BATCH,
    ubatch_size: Annotated[
        int, typer.Option("-ub", "--ubatch-size", min=1, help="Most tokens in one piece of it.")
    ] = DEFAULT_UBATCH,
    threads: Annotated[
        int | None,
        typer.Option(
            "-t",
            "--threads",
            min=1,
            show_default="half of the processors",
            help="CPU threads, of local stages too.",
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", help="The prompt.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="A file that holds the prompt.")
    ] = None,
    n_predict: Annotated[
        int, typer.Option("-n", "--n-predict", help="Most tokens; -1: until the text ends.")
    ] = -1,
    temperature: Annotated[
        float, typer.Option("--temp", help="0 takes the likeliest token, always.")
    ] = 0.8,
    seed: Annotated[int, typer.Option("--seed", help="For sampling; -1: a random one.")] = -1,
    stats: Annotated[bool, typer.Option("--stats", help="Show traffic per decode step.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Continue a prompt with a model whose layers are spread over a ring."""
    text = _prompt(prompt, file)
    path = resolve_model(model, hf)
    sampling = SamplingParams(temperature=temperature, seed=None if seed < 0 else seed)
    with _ring(rpc, local_stages, threads) as ring:
        devices = parse_list(device)
        with _bar("load") as update:
            loaded = ring.load(
                path,
                devices=devices,
                tensor_split=_shares(tensor_split, len(devices or ring.devices)),
                n_gpu_layers=n_gpu_layers,
                n_ctx=ctx_size,
                n_batch=batch_size,
                n_ubatch=ubatch_size,
                n_threads=threads,
                progress=update,
            )
        _say_stages(loaded)
        with _bar("prompt") as update:
            run = loaded.generate(
                text,
                n_predict=n_predict,
                sampling=sampling,
                progress=lambda done, total: _ignore(update(done / total)),
            )
            pieces = _write(run, quiet=as_json)
        _say_speed(run)
        if as_json:
            print(json.dumps(_report(loaded, run, "".join(pieces)), ensure_ascii=False))
        if stats or stats_wanted():
            _say_traffic(loaded)


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise CallerError("give a prompt: either -p TEXT or -f FILE")
    if file is None:
        return prompt or ""
    try:
        return file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise CallerError(f"the prompt file {file} cannot be read: {reason}") from None


def _ring(rpc: str, local_stages: int, threads: int | None) -> Ring:
    if rpc and local_stages:
        raise CallerError("--rpc and --local-stages are two ways to get nodes: use one of them")
    if local_stages:
        return Ring.local(local_stages, n_threads=threads)
    return Ring(parse_endpoints(rpc))


def _shares(text: str, n_devices: int) -> list[float]:
    if not text:
        return []
    if not n_devices:
        raise CallerError("-ts splits layers over devices, and there are none: add --rpc")
    return parse_split(text, n_devices)


@contextmanager
def _bar(name: str) -> Iterator[Any]:
    """A progress bar on stderr, where that is a terminal; yields what moves it to a share."""
    columns = (
        TextColumn("{task.description:>7}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=_talk, transient=True, disable=not _talk.is_terminal) as bar:
        task = bar.add_task(name, total=1.0)

        def update(share: float) -> bool:
            bar.update(task, completed=share, visible=share < 1.0)
            return True

        yield update


def _ignore(_: object) -> None:
    """Turn a value into None."""


def _write(run: Generation, *, quiet: bool) -> list[str]:
    pieces = []
    for piece in run:
        pieces.append(piece)
        if not quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if not quiet:
        print()
    return pieces


def _say(line: str) -> None:
    """Talk on stderr, as it is: an address like [fd00::1]:50052 is no markup."""
    _talk.print(line, markup=False, soft_wrap=True)


def _say_stages(loaded: RingModel) -> None:
    stages = ", ".join(
        f"{s.device}{f' ({s.endpoint})' if s.endpoint else ''} {s.n_layers} layers"
        for s in loaded.stages
    )
    _say(f"{loaded.model.description}: {stages}")


def _say_speed(run: Generation) -> None:
    _say(
        f"prompt {len(run.prompt)} tokens, {run.prompt_tokens_per_second:.1f} tok/s; "
        f"generated {len(run.ids)} tokens, {run.tokens_per_second:.1f} tok/s; "
        f"{run.stop_reason or 'stopped'}"
    )


def _say_traffic(loaded: RingModel) -> None:
    window = loaded.window
    columns = [(endpoint, window.per_step(endpoint)) for endpoint in window.nodes]
    columns.append(("all nodes", window.per_step()))
    print_table(traffic_table(f"{window.steps} decode steps", columns), stderr=True)


def _report(loaded: RingModel, run: Generation, text: str) -> dict[str, Any]:
    step = loaded.window.per_step()
    return {
        "text": text,
        "ids": run.ids,
        "prompt_tokens": len(run.prompt),
        "stop_reason": run.stop_reason,
        "stages": [
            {"device": s.device, "endpoint": s.endpoint, "layers": s.n_layers}
            for s in loaded.stages
        ],
        "prompt_seconds": run.prompt_seconds,
        "token_seconds": run.token_seconds,
        "steps": loaded.window.steps,
        "per_step": {
            "commands": step.commands,
            "bytes_out": step.bytes_out,
            "bytes_in": step.bytes_in,
            "paths": step.paths,
        },
    }
