"""`ringline bench link`: its arguments and its table."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ringline.bench.link import FULL, QUICK, LinkReport, run_link
from ringline.cli.json_file import check_writable, write_json
from ringline.cli.tables import figures_table, print_table

__all__ = ["link"]

_talk = Console(stderr=True, highlight=False)


def link(
    json_file: Annotated[
        Path | None, typer.Option("--json", help="Write the figures to this file.")
    ] = None,
    rounds: Annotated[
        int | None, typer.Option("--rounds", min=1, help=f"Rounds; default: {FULL.rounds}.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="One short round: shows that it works, compares little.")
    ] = False,
) -> None:
    """Compare a connection with TLS to one without, to nodes on this machine.

    A round trip of a PING, a write (SET_TENSOR) and a read (GET_TENSOR) of 64 MiB, in interleaved
    rounds, and the processor time of client and node together, which depends less on what else runs
    on the machine. Figures are medians over the rounds; a ratio is the median of the rounds' own
    ratios.
    """
    check_writable(json_file)
    plan = QUICK if quick else FULL
    if rounds is not None:
        plan = replace(plan, rounds=rounds)
    report = run_link(plan, say=_talk.print)
    write_json(json_file, report.as_json())
    _print(report)


def _print(report: LinkReport) -> None:
    machine, plan = report.machine, report.plan
    print(
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load']:.1f}; "
        f"{machine['system']}, Python {machine['python']}\n"
    )
    title = f"one client, one node, {plan.size >> 20} MiB, {plan.rounds} rounds"
    table = figures_table(title, "", "plain", "TLS", "TLS over plain")
    for figure, label, digits in (
        ("set_mb_s", "SET_TENSOR, MB/s", 0),
        ("get_mb_s", "GET_TENSOR, MB/s", 0),
        ("set_cpu_ms", "processor time of a SET, ms", 0),
        ("get_cpu_ms", "processor time of a GET, ms", 0),
        ("ping_us", "PING and back, us", 1),
    ):
        values = (report.plain.median(figure), report.tls.median(figure))
        cells = [f"{value:,.{digits}f}" for value in values]
        table.add_row(label, *cells, f"{report.ratio(figure):.2f}")
    print_table(table)
