"""Tables for people, above all the traffic table: what each decode step sent and received."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ringline.bench.report import Aim
from ringline.client.counters import PerStep

__all__ = ["aims_table", "figures_table", "print_table", "traffic_table"]

#: wider than any table.
_WIDEST = 10_000


def print_table(table: Table, *, stderr: bool = False) -> None:
    """Print a table as wide as it is: a file and a pipe have no edge, and endpoints must be whole.

    In a terminal that is narrower the lines wrap.
    """
    console = Console(stderr=stderr, highlight=False, width=_WIDEST)
    width = console.measure(table).maximum
    Console(stderr=stderr, highlight=False, width=width).print(table, crop=False)


def figures_table(title: str, first: str, *others: str) -> Table:
    """A table without lines: words in the first column, figures in the others."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first)
    for heading in others:
        table.add_column(heading, justify="right")
    return table


def aims_table(aims: Sequence[Aim], title: str = "aims") -> Table:
    """Each aim with what was measured, its limit, and whether that was kept."""
    table = figures_table(title, "aim", "measured", "limit", "")
    for aim in aims:
        limit = f"{'<=' if aim.at_most else '>='} {aim.limit:.2f}"
        table.add_row(aim.what, f"{aim.value:.3f}", limit, "met" if aim.met else "missed")
    return table


def traffic_table(title: str, columns: Sequence[tuple[str, PerStep]]) -> Table:
    """Per decode step: count and bytes of every command, then bytes out and in, then paths.

    Args:
        title: printed above.
        columns: (heading, means per step).
    """
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column("per decode step")
    for heading, _ in columns:
        table.add_column(Text(heading), justify="right")
    for name in _names([step.commands for _, step in columns]):
        cells = [_command(step, name) for _, step in columns]
        table.add_row(name, *cells)
    table.add_row("bytes out", *(f"{step.bytes_out:,.0f}" for _, step in columns))
    table.add_row("bytes in", *(f"{step.bytes_in:,.0f}" for _, step in columns))
    for path in _names([step.paths for _, step in columns]):
        cells = [_number(step.paths.get(path, 0.0)) for _, step in columns]
        table.add_row(f"hidden states: {path}", *cells)
    return table


def _names(parts: Sequence[dict[str, float]]) -> list[str]:
    return sorted({name for part in parts for name in part})


def _command(step: PerStep, name: str) -> str:
    if name not in step.commands:
        return "-"
    count, size = _number(step.commands[name]), step.command_bytes.get(name, 0)
    return f"{count} ({size:,.0f} B)" if size else count  # it was part of a STEP


def _number(value: float) -> str:
    return f"{value:.2f}" if value else "-"
