"""`ringline bench accounting`: its arguments and its tables."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ringline.bench.accounting import FULL, QUICK, run_accounting
from ringline.bench.accounting_report import AccountingReport
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.lists import distinct, numbers, words
from ringline.cli.tables import figures_table, print_table
from ringline.client.thin import Parts
from ringline.engine.demo_model import ensure_demo_model

__all__ = ["accounting"]

_talk = Console(stderr=True, highlight=False)


def accounting(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="N,N", help="Streams that decode at once; default: 1,8,32."),
    ] = None,
    stages: Annotated[
        str | None, typer.Option(metavar="N,N", help="Stages, local nodes; default: 2,3,4.")
    ] = None,
    parts: Annotated[
        str | None,
        typer.Option(
            metavar="P,P",
            help="Parts of level 5: all, none, codec, rows, sampling, or some with + between "
            "them; default: none,codec,rows,sampling,all.",
        ),
    ] = None,
    rounds: Annotated[
        int, typer.Option("--rounds", min=1, help="Rounds; times are compared from two on.")
    ] = 1,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A GGUF file; default: the demo's model.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="Two small cells: shows that it works.")
    ] = False,
) -> None:
    """Count the bytes of a decode step between the coordinator and each node.

    Every combination of rows, stages and parts is a cell: the rows decode one token each, over
    local nodes, and the hidden states go from node to node. Figures are medians over the steps of a
    cell, without TCP/IP; the step in which libllama's window over the cache grows (at 256 tokens)
    stands apart. With several rounds the time of a step is compared with that of one without any
    part; a ratio is the median of the rounds' own ratios.
    """
    check_writable(json_file)
    plan = QUICK if quick else FULL
    lists: dict[str, Any] = {
        "rows": distinct(numbers("--rows", rows)),
        "stages": distinct(numbers("--stages", stages)),
        "parts": _parts(parts),
        "rounds": rounds,
    }
    plan = replace(plan, **{name: value for name, value in lists.items() if value is not None})
    plan.check()
    report = run_accounting(model or ensure_demo_model(_talk.print), plan, say=_talk.print)
    write_json(json_file, report.as_json())
    _print(report)


def _parts(text: str | None) -> list[Parts] | None:
    if text is None:
        return None
    return list(dict.fromkeys(Parts.parse(entry, f"--parts {text}") for entry in words(text)))


def _print(report: AccountingReport) -> None:
    for table in [_cells(report), *([_aims(report)] if report.aims() else [])]:
        print_table(table)
        print()
    if report.time_aims():
        print_table(_times(report))


def _cells(report: AccountingReport) -> Table:
    title = "bytes of a decode step, medians; each node: out/in, in the order of the stages"
    headings = ("commands", "out", "in", "each node", "window grows: out", "in")
    table = figures_table(title, "cell", *headings)
    for cell, figures in report.cells.items():
        grow_out, grow_in = figures.grow_bytes
        table.add_row(
            str(cell),
            str(sum(figures.commands.values())),
            f"{figures.bytes_out:,}",
            f"{figures.bytes_in:,}",
            " ".join(f"{out:,}/{in_:,}" for _, out, in_ in figures.nodes),
            f"{grow_out:,}",
            f"{grow_in:,}",
        )
    return table


def _times(report: AccountingReport) -> Table:
    table = figures_table("time of a step", "cell", "ms", "ratio to none", "limit", "")
    limits = {aim.what.partition(":")[0]: aim for aim in report.time_aims()}
    for cell in report.runs:
        aim = limits.get(str(cell))
        more = ["", "", ""]
        if aim is not None:
            more = [f"{aim.value:.3f}", f"<= {aim.limit:.2f}", "met" if aim.met else "missed"]
        table.add_row(str(cell), f"{report.milliseconds(cell):.2f}", *more)
    return table


def _aims(report: AccountingReport) -> Table:
    table = figures_table("aims, all parts on", "aim", "counted", "limit", "")
    for aim in report.aims():
        verdict = "met" if aim.met else "missed"
        table.add_row(aim.what, f"{aim.value:,.0f}", f"<= {aim.limit:,.0f}", verdict)
    return table
