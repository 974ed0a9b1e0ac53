"""`ringline demo`: the proof that a ring runs, on this machine, with a real model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ringline.bench.demo import DemoResult, run_demo
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.tables import print_table, traffic_table
from ringline.engine.demo_model import ensure_demo_model

app = typer.Typer(add_completion=False)
_talk = Console(stderr=True, highlight=False)


@app.command()
def demo(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
) -> None:
    """Run a real model on this CPU and over three local nodes, by hub and directly.

    Prints the text, then what each decode step costs the coordinator. Exit code 0 only if all arms
    gave the same text and the direct ones kept the hidden states off the coordinator.
    """
    check_writable(json_file)
    model = ensure_demo_model(_talk.print)
    result = run_demo(model, say=_talk.print)
    write_json(json_file, result.as_json())
    _print(result)
    for complaint in result.complaints:
        _talk.print(f"error: {complaint}")
    if result.complaints:
        raise typer.Exit(1)


def _print(result: DemoResult) -> None:
    for text in result.arms[0].texts:
        print(text)
        print("---")
    columns = [(arm.arm.name, arm.per_step) for arm in result.arms if arm.arm.stages]
    print_table(traffic_table(f"{result.model}: sent and received by the coordinator", columns))
    print()
    sums = Table(box=None, pad_edge=False)
    sums.add_column("arm")
    sums.add_column("decode steps", justify="right")
    sums.add_column("md5 of the text")
    for arm in result.arms:
        sums.add_row(arm.arm.name, str(arm.steps), arm.md5)
    print_table(sums)
    print("all arms gave the same text" if result.identical else "THE ARMS DIFFER")
