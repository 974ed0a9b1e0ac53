"""The fuzzer with a fixed seed and a bounded time, and that the fuzzer would notice.

`make fuzz N=10000 SEED=1` plays more of the same; tests/fuzz says how it works.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import numpy as np
import pytest

from ringline.ggml.types import tables
from ringline.wire.commands import Command
from tests.fuzz.campaign import Limits, replay, run_campaign
from tests.fuzz.cases import Case, Kind, make_case
from tests.fuzz.corpus import SHIFT, Scene, Write, record_scenes
from tests.fuzz.frames import run_frames
from tests.fuzz.models import FEW
from tests.fuzz.nodes import FUZZ_NODE
from tests.fuzz.session import End, FuzzSession, NodeLog
from tests.peers.processes import patience, ringline_node

SEED = 1
#: seconds of mutated graphs, and of malformed messages.
GRAPHS, MESSAGES = 40, 25


@pytest.fixture(scope="module")
def scenes() -> list[Scene]:
    with ringline_node(*FUZZ_NODE) as node:
        return record_scenes(node.endpoint, ["llama", "experts"])


def test_mutated_graphs_harm_neither_the_gatekeeper_nor_a_client_that_decodes(tmp_path):
    report = run_campaign(SEED, Limits(10_000, seconds=GRAPHS), tmp_path, FEW)
    assert not report.faults, report.text()
    assert report.cases > 20
    assert report.ends[End.REFUSED] > 0, report.text()
    assert report.ends[End.COMPUTED] > 0, report.text()
    assert report.bystander["tokens"] > 0
    assert report.bystander["wrong"] == 0


def test_malformed_messages_of_every_command_kill_no_session_and_all_are_answered():
    report = run_frames(SEED, many=2, seconds=patience(MESSAGES))
    assert not report.faults, report.text()
    assert report.commands >= {int(command) for command in Command}


def test_the_same_seed_gives_the_same_cases_in_another_run(scenes):
    with ringline_node(*FUZZ_NODE) as node:
        again = record_scenes(node.endpoint, ["llama", "experts"])
    for number in range(100):
        assert make_case(SEED, number, scenes) == make_case(SEED, number, again)
    assert make_case(SEED, 0, scenes) != make_case(SEED + 1, 0, scenes)


def test_what_was_recorded_is_computed_as_it_is(scenes):
    """Else a case would be refused for a fault of the fuzzer's own."""
    with (
        ringline_node(*FUZZ_NODE) as node,
        closing(NodeLog(node.log_path)) as log,
        closing(FuzzSession(node, log)) as session,
    ):
        for scene in scenes:
            for number in range(len(scene.graphs)):
                outcome = session.play(plain_case(scene, number), scene)
                assert outcome.end is End.COMPUTED, outcome
        assert session.restarts == len(scenes)


def test_a_crash_is_seen_written_down_and_seen_again(scenes, tmp_path):
    """An id out of range in the data of GET_ROWS: nobody can see that before it is computed."""
    scene = scenes[0]
    case = with_wild_ids(plain_case(scene, 0), scene)
    case.save(tmp_path / "case.json")
    assert Case.load(tmp_path / "case.json") == case
    outcome = replay(tmp_path / "case.json")
    assert outcome.end is End.CRASHED
    assert outcome.why in ("SIGABRT", "SIGSEGV")
    assert outcome.last == "GRAPH_COMPUTE"


def plain_case(scene: Scene, number: int) -> Case:
    """A graph as it was recorded."""
    graph = scene.graphs[number]
    body = bytes(graph.body.pack())
    return Case(0, 0, Kind.FIELDS, scene.name, number, body, graph.writes, False, 0, ())


def with_wild_ids(case: Case, scene: Scene) -> Case:
    tensors = scene.graphs[case.graph].body.tensors
    (gather, *_) = np.flatnonzero(tensors["op"] == tables().op_names.index("GET_ROWS"))
    ids = tensors[int(tensors["src"][gather][1]) - 1]
    number, address = int(ids["buffer"]), int(ids["data"])
    wild = Write(number, address - (number << SHIFT), np.array([1 << 30], np.int32).tobytes())
    return replace(case, writes=(*case.writes, wild))
