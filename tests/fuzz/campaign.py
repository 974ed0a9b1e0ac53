"""Many cases against one node while a second client decodes: what became of them, and the verdict.

The node must live, the second client's tokens must be those of the local CPU, and no case may take
for ever. A case that kills its own session is allowed, counted by op, and written down: a rule may
be missing.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

import make_model
from make_model import ModelSpec
from tests.fuzz.cases import Case, Kind, make_case, node_prefix, op_of_node
from tests.fuzz.corpus import Scene, record_scenes
from tests.fuzz.models import ALL
from tests.fuzz.nodes import FUZZ_NODE
from tests.fuzz.session import End, FuzzSession, NodeLog, Outcome
from tests.peers.processes import ROOT, Peer, environment, patience, ringline_node
from tests.server_client import Client, children, wait_for

#: crashes with the same last words whose op is looked for; each search takes some sessions.
MOST_BLAMED: Final = 8
MODEL: Final = ModelSpec(layers=2, embd=128, heads=4, kv_heads=2, ff=256, seed=9)


@dataclass
class Report:
    """What became of a campaign.

    Attributes:
        cases, restarts, seconds: in all; ends: cases by what became of them.
        rules: refused cases by rule; kinds: cases by kind and end.
        crashes: by op and last words; files: the cases that were written down.
        bystander: what the second client says: rounds, tokens, wrong.
        faults: what must not be; empty where all is well.
    """

    cases: int = 0
    restarts: int = 0
    seconds: float = 0.0
    ends: Counter[End] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    rules: Counter[str] = field(default_factory=Counter)
    crashes: Counter[str] = field(default_factory=Counter)
    files: list[Path] = field(default_factory=list)
    bystander: dict[str, Any] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """For people."""
        ends = ", ".join(f"{self.ends[end]} {end}" for end in End)
        second = self.bystander
        lines = [
            f"{self.cases} cases in {self.seconds:.0f} s: {ends}; {self.restarts} sessions",
            f"second client: {second.get('tokens', 0)} tokens, {second.get('wrong', '?')} wrong",
        ]
        lines += [f"  {count:6} {kind}" for kind, count in sorted(self.kinds.items())]
        lines += [f"refused by {len(self.rules)} rules, the most frequent:"]
        lines += [f"  {count:6} {rule}" for rule, count in self.rules.most_common(25)]
        lines += ["crashes by op and last words:"] if self.crashes else ["no session crashed"]
        lines += [f"  {count:6} {what}" for what, count in self.crashes.most_common()]
        lines += [f"written down: {path}" for path in self.files[:40]]
        lines += [f"FAULT: {fault}" for fault in self.faults] or ["no fault"]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much is played: cases, and seconds after which no new one begins."""

    cases: int
    seconds: float = float("inf")


def run_campaign(
    seed: int, limits: Limits, folder: Path | None, names: Sequence[str] = ALL
) -> Report:
    """Play the cases of a seed in the scenes of these names; failures are written to `folder`."""
    report = Report()
    with ringline_node(*FUZZ_NODE) as node, second_client(node, report):
        scenes = record_scenes(node.endpoint, names)
        begin = time.monotonic()
        with _Player(node, report, folder) as player:
            for number in range(limits.cases):
                if time.monotonic() - begin > limits.seconds or report.faults:
                    break
                player.play(make_case(seed, number, scenes), scenes)
        report.seconds = time.monotonic() - begin
        _check_node(node, report)
    return report


@contextmanager
def second_client(node: Peer, report: Report) -> Iterator[None]:
    """A client that decodes until the block ends; what it says goes into the report."""
    with tempfile.TemporaryDirectory(prefix="ringline-fuzz-") as folder, ExitStack() as stack:
        path = make_model.make_model(Path(folder) / "bystander.gguf", MODEL)
        talk = stack.enter_context((Path(folder) / "talk").open("w+b"))
        process = stack.enter_context(
            subprocess.Popen(
                [sys.executable, "-m", "tests.fuzz.bystander", node.endpoint, str(path)],
                cwd=ROOT,
                env=environment({"PYTHONPATH": ":".join(sys.path)}),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=talk,
                text=True,
            )
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        assert process.stdout.readline() == "decodes\n", _words(talk)
        yield
        printed, _ = process.communicate(timeout=patience(60))
        if process.returncode:
            report.faults.append(f"the second client failed: {_words(talk)}")
            return
        report.bystander = json.loads(printed)
        if report.bystander["wrong"]:
            report.faults.append("the second client got wrong tokens")


def _words(talk: BinaryIO) -> str:
    """The end of what a process has said."""
    talk.seek(0)
    return talk.read().decode(errors="replace")[-300:]


class _Player:
    """Plays cases and keeps the books."""

    def __init__(self, node: Peer, report: Report, folder: Path | None) -> None:
        self._node, self._report, self._folder = node, report, folder
        self._log = NodeLog(node.log_path)
        self._session = FuzzSession(node, self._log)
        self._blamed: Counter[str] = Counter()

    def __enter__(self) -> _Player:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.close()
        self._log.close()

    def play(self, case: Case, scenes: list[Scene]) -> None:
        """One case."""
        scene = next(scene for scene in scenes if scene.name == case.scene)
        outcome = self._session.play(case, scene)
        report = self._report
        report.cases += 1
        report.ends[outcome.end] += 1
        report.kinds[f"{case.kind}: {outcome.end}"] += 1
        if outcome.end is End.REFUSED:
            report.rules[outcome.why] += 1
        elif outcome.end is End.SLOW:
            self._keep(case)
            report.faults.append(f"case {case.seed}-{case.number} takes for ever")
        elif outcome.end is End.CRASHED:
            self._note_crash(case, outcome, scene)
        report.restarts = self._session.restarts
        if not self._node.alive:
            self._keep(case)
            report.faults.append(f"the gatekeeper died of case {case.seed}-{case.number}")

    def _note_crash(self, case: Case, outcome: Outcome, scene: Scene) -> None:
        words = f"{outcome.why} {_where(outcome.said)}".strip()
        self._blamed[words] += 1
        op = "?"
        if self._blamed[words] <= MOST_BLAMED:
            op = self._blame(case, scene)
            self._keep(case)
        self._report.crashes[f"{case.kind}, {op}: {words}"] += 1

    def _blame(self, case: Case, scene: Scene) -> str:
        """The op of the first node with which the graph kills a fresh session."""
        if case.kind in (Kind.BYTES, Kind.STEP):
            return "bytes"
        low, high = 0, len(_nodes(case))  # the first `low` nodes are harmless, the first `high` not
        if not self._kills(case, high, scene):
            return "not again"
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if self._kills(case, middle, scene) else (middle, high)
        return op_of_node(case, high - 1)

    def _kills(self, case: Case, count: int, scene: Scene) -> bool:
        self._session.close()
        return self._session.play(node_prefix(case, count), scene).end is End.CRASHED

    def _keep(self, case: Case) -> None:
        if self._folder is not None:
            path = self._folder / f"{case.seed}-{case.number}.json"
            case.save(path)
            self._report.files.append(path)


def replay(path: Path) -> Outcome:
    """Play one case that was written down, against a fresh node."""
    case = Case.load(path)
    with ringline_node(*FUZZ_NODE) as node, closing(NodeLog(node.log_path)) as log:
        scenes = record_scenes(node.endpoint, [case.scene.partition(",")[0]])
        scene = next(scene for scene in scenes if scene.name == case.scene)
        with closing(FuzzSession(node, log)) as session:
            return session.play(case, scene)


def _check_node(node: Peer, report: Report) -> None:
    """The node serves the next client, and no session is left over but the second client's."""
    with Client.extended(node.endpoint) as client:
        client.ping()
    try:
        wait_for("all sessions to end", lambda: len(children(node.process.pid)) <= 3)
    except AssertionError as error:
        report.faults.append(str(error))


def _nodes(case: Case) -> Any:
    from ringline.wire.graph import GraphBody

    return GraphBody.unpack(case.body).nodes


def _where(said: str) -> str:
    """File, line and condition of an assertion, without the folders."""
    return said.rpartition("/")[2][:110]
