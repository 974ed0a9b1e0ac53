"""`ringline bench serve`: its arguments and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ringline.bench.serve import FULL, QUICK, run_serve
from ringline.bench.serve_report import ServeReport
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.lists import distinct, numbers
from ringline.cli.tables import aims_table, figures_table, print_table
from ringline.engine.demo_model import ensure_demo_model

__all__ = ["serve"]

_MEGA = 1e6
_talk = Console(stderr=True, highlight=False)


def serve(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    streams: Annotated[
        str | None, typer.Option(metavar="N,N", help="Streams; default: 1,2,4,8,16,32.")
    ] = None,
    stages: Annotated[
        int | None,
        typer.Option(min=1, help=f"Stages, local nodes of one thread; default: {FULL.stages}."),
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help=f"Rounds; default: {FULL.rounds}.")
    ] = None,
    requests: Annotated[
        int | None,
        typer.Option(
            "--requests",
            min=0,
            help=f"Requests while memory is watched; 0: none; default: {FULL.memory.requests}.",
        ),
    ] = None,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A GGUF file; default: the demo's model.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round: shows that it works, compares little.")
    ] = False,
) -> None:
    """Time `ringline api` against the same engine without HTTP, in interleaved rounds.

    Closed-loop streams ask an engine in a process of its own, directly and then over HTTP with
    every token as an event. Figures are medians over the rounds; a ratio is the median of the
    rounds' own ratios. Then small questions, alone and beside streams, and the memory of both
    processes over many requests.
    """
    check_writable(json_file)
    plan = QUICK if quick else FULL
    given: dict[str, Any] = {
        "streams": distinct(numbers("--streams", streams)),
        "stages": stages,
        "rounds": rounds,
        "memory": None if requests is None else replace(plan.memory, requests=requests),
    }
    plan = replace(plan, **{name: value for name, value in given.items() if value is not None})
    plan.check()
    report = run_serve(model or ensure_demo_model(_talk.print), plan, say=_talk.print)
    write_json(json_file, report.as_json())
    for table in (_streams(report), _latency(report), _memory(report), aims_table(report.aims())):
        if table.row_count:
            print_table(table)
            print()


def _streams(report: ServeReport) -> Table:
    load = report.load
    title = f"{load.n_prompt} tokens in, {load.n_predict} out; {report.stages} stages"
    headings = ("bare tok/s", "API tok/s", "ratio", "step ratio", "TTFT s", "API", "TPOT ms", "API")
    costs = ("HTTP us/token", "engine us/token", "client us/token")
    table = figures_table(title, "streams", *headings, *costs)
    for streams in report.runs:
        row = report.row(streams)
        bare, api = row["bare"], row["api"]
        table.add_row(
            str(streams),
            f"{bare['tok_s']:.1f}",
            f"{api['tok_s']:.1f}",
            f"{row['throughput_ratio']:.3f}",
            f"{row['step_ratio']:.3f}",
            *(f"{arm['ttft_s']:.2f}" for arm in (bare, api)),
            *(f"{arm['tpot_ms']:.1f}" for arm in (bare, api)),
            *(f"{api[f'{name}_us_per_token']:.0f}" for name in ("http", "engine", "client")),
        )
    return table


def _latency(report: ServeReport) -> Table:
    most = max(report.runs)
    table = figures_table(
        "small questions", "path", "idle ms", "p95", f"beside {most} streams ms", "p95"
    )
    for path, both in report.latencies().items():
        cells = [f"{1e3 * value:.1f}" for s in both.values() for value in (s.median, s.p95)]
        table.add_row(path, *cells)
    return table


def _memory(report: ServeReport) -> Table:
    table = figures_table("memory", "after requests", "HTTP process MB", "engine MB")
    n = len(report.memory)
    for sample in report.memory[:: max(1, n // 5)]:
        table.add_row(
            str(sample.requests), *(f"{s / _MEGA:.1f}" for s in (sample.http, sample.engine))
        )
    return table
