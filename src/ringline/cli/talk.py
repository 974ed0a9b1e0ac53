"""Talk on stderr: lines, progress bars, the plan, the traffic table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from ringline.cli.tables import print_table, traffic_table
from ringline.client.counters import Window
from ringline.engine.placement import Stage

__all__ = ["progress_bar", "say", "say_stages", "say_traffic"]

_talk = Console(stderr=True, highlight=False)


def say(line: str) -> None:
    """Say a line as it is: an address like [fd00::1]:50052 is no markup."""
    _talk.print(line, markup=False, soft_wrap=True)


@contextmanager
def progress_bar(name: str) -> Iterator[Callable[[float], bool]]:
    """A progress bar, where stderr is a terminal; yields what moves it to a share, 0 to 1."""
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


def say_stages(model: str, stages: Sequence[Stage], reason: str) -> None:
    """Say which device holds how many layers, and why they stand in this order."""
    plan = ", ".join(
        f"{s.device}{f' ({s.endpoint})' if s.endpoint else ''} {s.n_layers} layers" for s in stages
    )
    say(f"{model}: {plan}{f' ({reason})' if reason else ''}")


def say_traffic(window: Window) -> None:
    """Say what each decode step sent and received."""
    columns = [(endpoint, window.per_step(endpoint)) for endpoint in window.nodes]
    columns.append(("all nodes", window.per_step()))
    print_table(traffic_table(f"{window.steps} decode steps", columns), stderr=True)
