"""`ringline bench groups`: its arguments and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from ringline.bench.group_report import GroupReport, summary
from ringline.bench.groups import FULL, QUICK, run_groups
from ringline.bench.llama_server import Binaries
from ringline.bench.streams import Load
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.lists import distinct, numbers, words
from ringline.cli.tables import aims_table, figures_table, print_table
from ringline.client.edge import Path as TransferPath
from ringline.engine.demo_model import ensure_demo_model
from ringline.errors import CallerError

__all__ = ["groups"]

_NUMBERS_OF_A_LOAD: Final = 2
_MOST_SWITCH_MS: Final = 1000
_talk = Console(stderr=True, highlight=False)


def groups(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    group_counts: Annotated[
        str | None, typer.Option("--groups", metavar="N,N", help="Groups; default: 1,2,3.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(metavar="N,N", help="Streams; default: 1,4,8,16,32.")
    ] = None,
    stages: Annotated[
        str | None, typer.Option(metavar="N,N", help="Stages, local nodes; default: 2,3.")
    ] = None,
    path: Annotated[
        str | None,
        typer.Option(metavar="P,P", help="Paths; default: hub,direct,rendezvous."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help=f"Rounds; default: {FULL.rounds}.")
    ] = None,
    load: Annotated[
        str | None, typer.Option(metavar="IN,OUT", help="Tokens of a request; default: 128,64.")
    ] = None,
    switch_interval: Annotated[
        str | None,
        typer.Option(
            metavar="MS,MS", help="Python's switch interval in the coordinator; default: its own."
        ),
    ] = None,
    prompts: Annotated[
        bool, typer.Option("--prompts/--no-prompts", help="Time long prompts in each round too.")
    ] = True,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A GGUF file; default: the demo's model.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round: shows that it works, compares little.")
    ] = False,
    llama_server: Annotated[
        Path | None,
        typer.Option(metavar="BIN", help="Measure llama.cpp's llama-server too: the program."),
    ] = None,
    rpc_server: Annotated[
        Path | None, typer.Option(metavar="BIN", help="Its ggml-rpc-server; both or none.")
    ] = None,
) -> None:
    """Time many requests at once with one and more groups, in interleaved rounds on this machine.

    Closed-loop streams, over local nodes with one thread each: every
    combination of groups, streams, stages and paths is a cell, about half a minute long in each
    round. Then long prompts, alone and beside others. Figures are medians over the rounds; a ratio
    is the median of the rounds' own ratios.
    """
    check_writable(json_file)
    plan = QUICK if quick else FULL
    if load is not None:
        plan = replace(plan, load=_load(load, plan.load))
    lists: dict[str, Any] = {
        "groups": distinct(numbers("--groups", group_counts)),
        "streams": distinct(numbers("--streams", streams)),
        "stages": distinct(numbers("--stages", stages)),
        "paths": _paths(path),
        "rounds": rounds,
        "binaries": _binaries(llama_server, rpc_server),
        "switch_ms": _milliseconds(switch_interval),
    }
    plan = replace(plan, **{name: value for name, value in lists.items() if value is not None})
    if not prompts:
        plan = replace(plan, prompt=None)
    plan.check()
    report = run_groups(model or ensure_demo_model(_talk.print), plan, say=_talk.print)
    write_json(json_file, report.as_json())
    _print(report, plan.load)


def _load(text: str, default: Load) -> Load:
    sizes = numbers("--load", text) or []
    if len(sizes) != _NUMBERS_OF_A_LOAD or min(sizes) < 1:
        raise CallerError(f"--load {text}: write the tokens of a prompt and of an answer: 128,64")
    return replace(default, n_prompt=sizes[0], n_predict=sizes[1])


def _milliseconds(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        found = [float(word) for word in text.split(",")]
    except ValueError:
        found = [0.0]
    if not all(0 < number <= _MOST_SWITCH_MS for number in found):
        raise CallerError(
            f"--switch-interval {text}: write milliseconds, above 0 and at most {_MOST_SWITCH_MS}, "
            "with commas between them"
        )
    return list(dict.fromkeys(found))


def _paths(text: str | None) -> list[TransferPath] | None:
    if text is None:
        return None
    names = words(text)
    known = [TransferPath.HUB.value, TransferPath.DIRECT.value, TransferPath.RENDEZVOUS.value]
    for name in names:
        if name not in known:
            raise CallerError(f"--path {name}: it must be one of {', '.join(known)}")
    return [TransferPath(name) for name in dict.fromkeys(names)]


def _binaries(llama_server: Path | None, rpc_server: Path | None) -> Binaries | None:
    if llama_server is None and rpc_server is None:
        return None
    if llama_server is None or rpc_server is None:
        raise CallerError("llama-server needs both: --llama-server BIN --rpc-server BIN")
    return Binaries(llama_server, rpc_server)


def _print(report: GroupReport, load: Load) -> None:
    tables = [_cells(report, load), *([aims_table(report.aims())] if report.aims() else [])]
    for table in tables:
        print_table(table)
        print()


def _cells(report: GroupReport, load: Load) -> Table:
    headings = ("tok/s", "TTFT s", "p95", "TPOT ms", "p95", "busy stages", "coordinator", "others")
    title = f"{load.n_prompt} tokens in, {load.n_predict} out; one thread a stage"
    table = figures_table(title, "cell", *headings)
    for cell, runs in report.cells.items():
        table.add_row(str(cell), *_figures(summary(runs)))
    for streams, runs in report.llama_server.items():
        table.add_row(f"llama-server, {streams} streams, 2 stages", *_figures(summary(runs)))
    return table


def _figures(cell: dict[str, Any]) -> list[str]:
    busy = " ".join(f"{share:.2f}" for share in cell["busy"])
    times = [f"{cell['tpot_ms']:.1f}", f"{cell['tpot_p95_ms']:.1f}"]
    return [
        f"{cell['tok_s']:.1f}",
        f"{cell['ttft_s']:.2f}",
        f"{cell['ttft_p95_s']:.2f}",
        *times,
        busy,
        f"{cell['coordinator_busy']:.2f}",
        f"{cell['others_busy']:.2f}",
    ]
