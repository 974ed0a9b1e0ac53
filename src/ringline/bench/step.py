"""`ringline bench step`: what a decode step costs by ringline and by llama.cpp's own RPC.

Interleaved rounds over all arms on one machine; only ratios of one run mean anything, since a
shared machine is never equally fast twice. Sizes are tokens, times milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ringline.bench.arms import ARMS, Arms, Servers, measure_commands
from ringline.bench.graphs import measure_graph
from ringline.bench.machine import describe_machine
from ringline.bench.peers import StockServers, find_checkout
from ringline.bench.report import StepReport, in_turns
from ringline.engine.local_nodes import LocalNodes
from ringline.llama.gguf_file import check_model_file

__all__ = ["FULL", "N_STAGES", "QUICK", "Plan", "run_step"]

N_STAGES: Final = 2


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is measured.

    Attributes:
        rounds: how often each arm runs.
        token: the workload (tests/peers/workloads.py) whose steps count.
        prompt: the workload whose prompt counts: 448 tokens in pieces of 64.
        repeat: how often each figure of a single command is taken in a round.
    """

    rounds: int
    token: str = "decode"
    prompt: str = "prompt"
    repeat: int = 8


FULL: Final = Plan(rounds=7)
#: one round, and one workload for both figures: to see that it works, not to compare.
QUICK: Final = Plan(rounds=1, token="prompt", repeat=1)


def run_step(model: Path, plan: Plan, *, say: Callable[[str], None]) -> StepReport:
    """Measure everything.

    Args:
        model: a GGUF file.
        plan: how much.
        say: gets a line of talk now and then.

    Raises:
        CallerError: no model, not in a checkout with its stock peers, or they were not built.
        RinglineError: a peer failed, or the arms do not give the same tokens.
    """
    checkout = find_checkout()
    model = model.resolve()  # the clients run in the checkout
    check_model_file(model)
    machine = describe_machine()
    say(f"starting {N_STAGES} stock servers and {N_STAGES} nodes on loopback")
    with _servers(checkout) as servers:
        arms = Arms(checkout, model, servers)
        for number, arm in enumerate(in_turns(ARMS, plan.rounds)):
            say(f"round {number // len(ARMS) + 1} of {plan.rounds}: {arm.label}")
            arms.run(arm, token=plan.token, prompt=plan.prompt)
        say("timing single commands")
        commands = measure_commands(checkout, servers, rounds=plan.rounds, repeat=plan.repeat)
        say("timing a graph")
        graph = measure_graph(model, servers["ringline"])
    return StepReport(machine, arms.series, commands, graph)


@contextmanager
def _servers(checkout: Path) -> Iterator[Servers]:
    """Two servers of each kind."""
    with (
        StockServers(checkout, N_STAGES, n_threads=1) as stock,
        LocalNodes(N_STAGES, n_threads=1) as nodes,
    ):
        yield {"stock": stock.endpoints, "ringline": nodes.endpoints}
