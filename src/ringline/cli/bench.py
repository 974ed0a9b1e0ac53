"""`ringline bench`: measurements for people, tables on stdout, talk on stderr."""

from __future__ import annotations

import signal
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Annotated, Final

import typer
from rich.console import Console
from rich.table import Table

from ringline.bench.report import StepReport
from ringline.bench.step import FULL, QUICK, run_step
from ringline.cli.bench_accounting import accounting
from ringline.cli.bench_groups import groups
from ringline.cli.bench_link import link
from ringline.cli.bench_narrow import narrow
from ringline.cli.bench_serve import serve
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.tables import aims_table, figures_table, print_table
from ringline.engine.demo_model import ensure_demo_model

app = typer.Typer(add_completion=False, no_args_is_help=True)
app.command()(groups)
app.command()(accounting)
app.command()(narrow)
app.command()(serve)
app.command()(link)
_talk = Console(stderr=True, highlight=False)
_ENDS: Final = (signal.SIGTERM, signal.SIGHUP)


@app.callback()
def bench() -> None:
    """Measure ringline, and llama.cpp beside it.

    SIGTERM and a closed terminal end a measurement as Ctrl-C does, together with the servers that
    it started.
    """
    for number in _ENDS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
            signal.signal(number, _end_as_ctrl_c)


def _end_as_ctrl_c(number: int, frame: FrameType | None) -> None:
    """Hand a signal to the handler of Ctrl-C: it knows where an exception may be raised.

    By default the signal would end only this process. The servers are in sessions of their own, so
    nobody else would end them.
    """
    for other in _ENDS:  # a second one must not cut short the ending of servers
        signal.signal(other, signal.SIG_IGN)
    handler = signal.getsignal(signal.SIGINT)
    if callable(handler):
        handler(number, frame)
    else:  # a shell's background job may ignore Ctrl-C
        raise KeyboardInterrupt


@app.command()
def step(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help=f"Rounds; default: {FULL.rounds}.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round: shows that it works, compares little.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A GGUF file; default: the demo's model.")
    ] = None,
) -> None:
    """Time a decode step, a prompt and single commands, in interleaved rounds on this machine.

    Arms: local CPU; the stock client and ringline, each over stock servers and over ringline nodes;
    two stages with one thread each. Times are medians over the rounds; a ratio is the median of the
    rounds' own ratios. Needs a checkout: the stock peers are part of its tests (`make bench`).
    """
    check_writable(json_file)
    plan = QUICK if quick else FULL
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    report = run_step(model or ensure_demo_model(_talk.print), plan, say=_talk.print)
    write_json(json_file, report.as_json())
    _print(report)


def _print(report: StepReport) -> None:
    machine = report.machine
    print(
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory'] / 2**30:.0f} GiB, "
        f"load {machine['load']:.1f}; {machine['system']}, Python {machine['python']}, "
        f"llama-cpp-python {machine['llama_cpp_python']}\n"
    )
    for table in (_steps(report), _commands(report), _aims(report)):
        print_table(table)
        print()


def _steps(report: StepReport) -> Table:
    base = next(arm for arm in report.arms if arm.name == "stock")
    title = (
        "two stages on one machine, one thread each; ratio: over stock client, stock servers, "
        "median of the rounds; best: fastest round over fastest round"
    )
    table = figures_table(title, "arm", "ms/token", "ratio", "best", "prompt ms", "ratio", "best")
    for arm in report.arms:
        token, prompt = (
            [f"{arm.median(f):.1f}", f"{arm.over(base, f):.3f}", f"{arm.best_over(base, f):.3f}"]
            for f in ("token_ms", "prompt_ms")
        )
        table.add_row(arm.label, *token, *prompt)
    return table


def _commands(report: StepReport) -> Table:
    base = next(series for series in report.commands if series.name == "stock")
    title = "single commands; ratio: over stock client, stock server"
    headings = ("GET 64 B us", "ratio", "SET 64 B us", "ratio", "SET 64 MiB GiB/s", "ratio")
    table = figures_table(title, "client and server", *headings)
    for series in report.commands:
        figures = ("get_us", "set_us", "bulk_gib")
        pairs = [(series.median(figure), series.over(base, figure)) for figure in figures]
        cells = [cell for value, ratio in pairs for cell in (f"{value:.2f}", f"{ratio:.3f}")]
        table.add_row(series.label, *cells)
    return table


def _aims(report: StepReport) -> Table:
    graph = report.graph
    title = f"aims; the graph has {graph.n_tensors} tensors, {graph.size:,} bytes"
    return aims_table(report.aims(), title)
