"""The stock peers are what the other tests take them for: they agree, record and show logs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.peers.dead_ends import refusing_endpoint
from tests.peers.golden import golden_frames
from tests.peers.processes import PeerFailed, run_stock_client, stock_server
from tests.peers.recorder import COMMANDS, WITHOUT_REPLY, recording_proxy
from tests.peers.tripwire import IN_PLACE
from tests.peers.workloads import WORKLOADS


@pytest.mark.model
@pytest.mark.parametrize("workload", WORKLOADS)
def test_a_stock_ring_of_any_size_agrees_with_the_local_cpu(
    workload: str, model_path: Path, local_ids: Callable[[str], dict[str, list[int]]]
) -> None:
    with stock_server(3) as servers:
        for n_servers in (1, 2, 3):
            result = run_stock_client(workload, model_path, servers[:n_servers])
            assert result["ids"] == local_ids(workload), f"{n_servers} stock servers"


@pytest.mark.model
def test_timings_cover_every_decode(model_path: Path) -> None:
    timings = run_stock_client("prompt", model_path, timing=True)["timings"]
    assert timings["steps"] == WORKLOADS["prompt"].n_predict - 1
    assert timings["ms_per_token"] > 0
    assert timings["prompt_ms"] > 0


@pytest.mark.model
def test_the_recorder_sees_all_and_changes_nothing(
    model_path: Path, local_ids: Callable[[str], dict[str, list[int]]]
) -> None:
    with stock_server() as (server,), recording_proxy(server.endpoint) as recording:
        result = run_stock_client("decode", model_path, [recording.endpoint])
    assert result["ids"] == local_ids("decode")
    steps = [exchange for exchange in recording.exchanges if exchange.command.startswith("GRAPH")]
    workload = WORKLOADS["decode"]
    assert len(steps) >= workload.n_prompts * workload.n_predict


def test_golden_bytes_cover_every_base_command_in_both_directions() -> None:
    requests = {frame.command for frame in golden_frames("request")}
    replies = {frame.command for frame in golden_frames("reply")}
    assert requests == set(COMMANDS)
    assert replies == set(COMMANDS) - WITHOUT_REPLY


def test_a_stock_server_comes_back_on_its_port() -> None:
    with stock_server() as (first,):
        port = int(first.endpoint.rpartition(":")[2])
        first.kill()
        assert not first.alive
        with stock_server(port=port) as (second,):
            assert second.endpoint == first.endpoint


def test_a_failing_peer_shows_its_log() -> None:
    with (
        pytest.raises(PeerFailed, match="no device is called 'nowhere'"),
        stock_server(device="nowhere"),
    ):
        pytest.fail("a server with an unknown device started")


@pytest.mark.model
def test_a_failing_test_shows_the_logs_of_its_peers(model_path: Path) -> None:
    with (
        refusing_endpoint() as endpoint,
        pytest.raises(PeerFailed, match=r"SIGABRT(.|\n)*Failed to connect") as failure,
        stock_server() as (server,),
    ):
        run_stock_client("decode", model_path, [server, endpoint])
    assert "Accepted client connection" in "".join(failure.value.__notes__)


@pytest.mark.model
def test_the_tripwire_lets_a_local_run_pass(
    model_path: Path,
    rpc_tripwire_env: dict[str, str],
    local_ids: Callable[[str], dict[str, list[int]]],
) -> None:
    result = run_stock_client("decode", model_path, env=rpc_tripwire_env)
    assert result["ids"] == local_ids("decode")


@pytest.mark.model
def test_the_tripwire_stops_the_stock_client(
    model_path: Path, rpc_tripwire_env: dict[str, str]
) -> None:
    with stock_server() as (server,), pytest.raises(PeerFailed) as failure:
        run_stock_client("decode", model_path, [server], env=rpc_tripwire_env)
    said = str(failure.value)
    assert "SIGABRT" in said
    assert IN_PLACE in said
    assert "tripwire: ggml_backend_rpc_add_server was called" in said
