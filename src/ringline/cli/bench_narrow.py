"""`ringline bench narrow`: its arguments and its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ringline.bench.narrow import NarrowReport, Plan, run_narrow
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.tables import figures_table, print_table
from ringline.engine.demo_model import ensure_demo_model

__all__ = ["narrow"]

_talk = Console(stderr=True, highlight=False)


def narrow(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    rate: Annotated[
        str, typer.Option(help="Of the coordinator's link, both ways, as tc writes it.")
    ] = Plan().rate,
    streams: Annotated[int, typer.Option(min=1, help="Closed-loop streams.")] = Plan().streams,
    stages: Annotated[int, typer.Option(min=1, help="Nodes.")] = Plan().stages,
    thin_only: Annotated[
        bool, typer.Option("--thin-only", help="Without the arms that take minutes a token.")
    ] = False,
    model: Annotated[
        Path | None, typer.Option("-m", "--model", help="A GGUF file; default: the demo's model.")
    ] = None,
) -> None:
    """Measure a ring whose coordinator sits behind a narrow link, in network namespaces (root).

    Each arm runs over the whole link and over the narrow one: the thin coordinator, hidden states
    from node to node with all else through the coordinator, and all through the coordinator.
    """
    check_writable(json_file)
    plan = Plan(rate=rate, streams=streams, stages=stages)
    if thin_only:
        plan = replace(plan, arms=plan.arms[:1])
    report = run_narrow(model or ensure_demo_model(_talk.print), plan, say=_talk.print)
    write_json(json_file, report.as_json())
    _print(report)


def _print(report: NarrowReport) -> None:
    plan = report.plan
    title = f"{plan.streams} streams, {plan.stages} stages, tokens per second"
    table = figures_table(title, "arm", "whole link", plan.rate, "ratio")
    for arm in report.as_json()["arms"]:
        figures = (arm["free_tok_s"], arm["narrow_tok_s"], arm["ratio"])
        table.add_row(arm["name"], *(f"{figure:.3f}" for figure in figures))
    print_table(table)
    for aim in report.aims():
        word = "met" if aim.met else "missed"
        print(f"{aim.what}: {aim.value:.3f}, at least {aim.limit:.2f}: {word}")
