"""Several clients on one node: each gets the ids of its own model, and leaves nothing behind."""

from __future__ import annotations

import re
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path as FilePath
from threading import Barrier

import pytest

import make_model
from make_model import ModelSpec
from ringline.client.edge import Path
from tests.commands import Running, running
from tests.peers.process_tree import descendants, tree_memory, watched
from tests.peers.processes import Peer, patience, ringline_node, run_stock_client
from tests.rings import Run, run_ring

pytestmark = pytest.mark.model

#: about a quarter of the work of the demo model, and another architecture.
OTHER = ModelSpec(arch="qwen2", layers=12, embd=256, ff=512, heads=4, vocab=2000)
#: what a client's memory is told from: its model is more than twice as large.
SMALL = 30 << 20


@pytest.fixture(scope="module")
def other_model(tmp_path_factory) -> FilePath:
    return make_model.make_model(tmp_path_factory.mktemp("other") / "other.gguf", OTHER)


@pytest.fixture(scope="module")
def other_ids(other_model) -> dict[str, list[int]]:
    return run_stock_client("decode", other_model)["ids"]


@pytest.fixture
def node():
    with ringline_node("--threads=1") as peer:
        yield peer


def session_processes(node: Peer) -> list[int]:
    """The processes of all sessions that the node has begun, as its log names them."""
    return [int(pid) for pid in re.findall(r"session \w+ begins: .* pid (\d+)", node.log())]


def wait_until(claim, what: str) -> None:
    deadline = time.monotonic() + patience(30)
    while not claim():
        assert time.monotonic() < deadline, f"still not true: {what}"
        time.sleep(0.05)


def test_two_clients_at_once_run_two_models(node, model_path, other_model, local_ids, other_ids):
    both_are_connected = Barrier(2, timeout=patience(60))

    def run(model: FilePath) -> dict[str, list[int]]:
        return run_ring("decode", model, [node], before=lambda _: both_are_connected.wait()).ids

    with ThreadPoolExecutor() as threads:
        one, other = threads.map(run, [model_path, other_model])
    assert one == local_ids("decode")
    assert other == other_ids
    assert len(set(session_processes(node))) == 2


def test_a_stock_client_and_ringline_at_once(node, model_path, other_model, local_ids, other_ids):
    def a_stock_client_is_there(_: object) -> None:
        wait_until(lambda: "level 0" in node.log(), "the stock client has a session")

    with ThreadPoolExecutor() as threads:
        stock = threads.submit(run_stock_client, "decode", model_path, [node])
        ours = run_ring("decode", other_model, [node], before=a_stock_client_is_there)
        assert stock.result()["ids"] == local_ids("decode")
        assert ours.ids == other_ids


@pytest.mark.parametrize("path", [Path.DIRECT, None], ids=["direct", "best"])
def test_two_rings_cross_on_the_same_nodes(path, model_path, other_model, local_ids, other_ids):
    """One goes from A to B, the other from B to A, past us: neither waits for ever."""
    both_are_connected = Barrier(2, timeout=patience(60))
    with ExitStack() as stack:
        a, b = (stack.enter_context(ringline_node("--threads=1")) for _ in range(2))

        def run(model: FilePath, peers: list[Peer]) -> Run:
            return run_ring(
                "decode", model, peers, path=path, before=lambda _: both_are_connected.wait()
            )

        with ThreadPoolExecutor() as threads:
            one, other = threads.map(run, [model_path, other_model], [[a, b], [b, a]])
    assert one.ids == local_ids("decode")
    assert other.ids == other_ids
    assert Path.HUB not in {*one.paths, *other.paths}


def test_what_a_client_held_is_free_memory_when_it_leaves(node, model_path):
    before = tree_memory(node.process.pid)
    most = [0]

    def measure() -> None:
        most[0] = most[0] or tree_memory(node.process.pid)

    run_ring("decode", model_path, [node], after_decode=measure)
    assert most[0] > before + model_path.stat().st_size - SMALL
    assert_back_at(node, before, session_processes(node))


def generating(model: FilePath, node: Peer) -> AbstractContextManager[Running]:
    """A client, in a process of its own, that does not end by itself."""
    return running("generate", "-m", model, "--rpc", node.endpoint, "-p", "Go", "--temp", 0)


def test_what_a_client_held_is_free_memory_when_it_is_killed(node, endless_model):
    before = tree_memory(node.process.pid)
    with generating(endless_model, node) as client:
        client.wait_for_text()
        assert tree_memory(node.process.pid) > before + endless_model.stat().st_size - SMALL
        sessions = session_processes(node)
        assert set(sessions) & set(descendants(node.process.pid))
        client.process.kill()
        client.process.wait()
        assert_back_at(node, before, sessions)


def test_a_killed_client_leaves_the_others_alone(node, endless_model, model_path, local_ids):
    with generating(endless_model, node) as victim:
        victim.wait_for_text()

        def kill() -> None:
            victim.process.kill()

        run = run_ring("decode", model_path, [node], after_decode=kill)
    assert run.ids == local_ids("decode")


def assert_back_at(node: Peer, before: int, sessions: list[int]) -> None:
    """The sessions' processes are gone, and with them what they held."""
    with watched(sessions) as processes:
        assert all(process.wait_gone(10) for process in processes)
    wait_until(lambda: tree_memory(node.process.pid) < before + SMALL, "the memory is free")
    assert node.alive
