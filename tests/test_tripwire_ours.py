"""Our coordinator and our node never call into libggml-rpc, which the tests' engine loads.

They run in a copy of llama_cpp where such a call ends the process; that copy's library must really
be the one in their memory.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import ringline, running
from tests.peers.process_tree import descendants, mapped_files
from tests.peers.processes import ringline_node, run_stock_client, stock_server
from tests.peers.tripwire import IN_PLACE
from tests.peers.workloads import PROMPTS, WORKLOADS

pytestmark = pytest.mark.model

GREEDY = ["-p", PROMPTS[0], "-n", WORKLOADS["decode"].n_predict, "-t", 1, "--temp", 0]


def rpc_libraries(pid: int) -> set[Path]:
    return {path for path in mapped_files(pid) if path.name.startswith("libggml-rpc")}


def test_a_ring_of_our_own_processes_never_calls_libggml_rpc(endless_model, rpc_tripwire_env):
    """Coordinator, nodes and their sessions, while they decode."""
    arguments = ["generate", "-m", endless_model, "--local-stages", 2, "-p", "Go", "--temp", 0]
    copy = Path(rpc_tripwire_env["PYTHONPATH"].partition(":")[0])
    with running(*arguments, env=rpc_tripwire_env) as command:
        command.wait_for_text()
        processes = descendants(command.pid)
        loaded = [rpc_libraries(pid) for pid in processes]
        assert command.process.poll() is None
    assert len(processes) >= 1 + 2 * 2  # each node is a gatekeeper and at least one session
    assert all(libraries == {copy / "llama_cpp/lib/libggml-rpc.so.0"} for libraries in loaded)


def test_its_text_is_that_of_a_normal_run(model_path, rpc_tripwire_env):
    arguments = ["generate", "-m", model_path, "--local-stages", 2, *GREEDY]
    normal = ringline(*arguments)
    guarded = ringline(*arguments, env=rpc_tripwire_env)
    assert (normal.code, guarded.code) == (0, 0), guarded.err
    assert guarded.out == normal.out
    assert IN_PLACE in guarded.err
    assert IN_PLACE not in normal.err


def test_our_coordinator_never_calls_it_for_stock_servers_either(
    model_path, rpc_tripwire_env, local_ids
):
    with stock_server(2) as servers:
        endpoints = ",".join(server.endpoint for server in servers)
        arguments = ["generate", "-m", model_path, "--rpc", endpoints, *GREEDY, "--json"]
        done = ringline(*arguments, env=rpc_tripwire_env)
    assert done.code == 0, done.err
    assert IN_PLACE in done.err
    ids = json.loads(done.out)["ids"]
    assert ids
    assert ids == local_ids("decode")["prompt 0"][: len(ids)]


def test_our_node_never_calls_it_for_a_stock_client_either(model_path, rpc_tripwire_env, local_ids):
    with ringline_node("--threads=1", env=rpc_tripwire_env) as node:
        assert IN_PLACE in node.log()
        assert run_stock_client("decode", model_path, [node])["ids"] == local_ids("decode")
