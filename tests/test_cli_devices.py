"""`ringline devices`: what each node of a ring lends, stock servers too."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack
from typing import Any

import pytest

from ringline import __version__
from ringline.wire.commands import EXTENSION_LEVEL
from tests.commands import ringline
from tests.peers.processes import Peer, ringline_node, stock_server

MIB = 1 << 20


@pytest.fixture(scope="module")
def peers() -> Any:
    """A ringline node that lends two devices, and a stock server."""
    with ExitStack() as stack:
        node = stack.enter_context(ringline_node("--threads=1", "--device=CPU,CPU"))
        (server,) = stack.enter_context(stock_server(1))
        yield [node, server]


@pytest.fixture(scope="module")
def rpc(peers: list[Peer]) -> str:
    return ",".join(peer.endpoint for peer in peers)


def test_json_lists_devices_in_the_order_of_the_stages(peers, rpc):
    done = ringline("devices", "--rpc", rpc, "--json")
    assert done.code == 0, done.err
    devices = json.loads(done.out)["devices"]
    assert [device["device"] for device in devices] == ["RPC0", "RPC1", "RPC2"]
    node, server = (peer.endpoint for peer in peers)
    assert [device["endpoint"] for device in devices] == [node, node, server]
    assert {device["protocol"] for device in devices} == {"7.0.0"}
    for device in devices:
        assert 0 < device["memory_free"] <= device["memory_total"]


def test_json_says_what_a_ringline_node_says_of_itself(rpc):
    first, second, _ = json.loads(ringline("devices", "--rpc", rpc, "--json").out)["devices"]
    assert first == {**second, "device": "RPC0", "memory_free": first["memory_free"]}
    assert first["node"] == socket.gethostname()
    assert first["kind"] == "CPU"
    assert first["description"]
    assert first["level"] == EXTENSION_LEVEL
    assert first["server"] == f"ringline {__version__}"
    assert first["engine"].startswith("llama-cpp-python 0.3.36, ggml ")


def test_json_claims_nothing_that_a_stock_server_does_not_say(rpc):
    *_, stock = json.loads(ringline("devices", "--rpc", rpc, "--json").out)["devices"]
    assert (stock["level"], stock["server"], stock["kind"]) == (0, "stock", "unknown")
    assert stock["node"] == stock["engine"] == stock["description"] == ""


@pytest.mark.parametrize("columns", ["", "40"])
def test_the_table_has_a_line_a_device_and_cuts_nothing_off(columns, peers, rpc):
    done = ringline("devices", "--rpc", rpc, env={"COLUMNS": columns})
    assert done.code == 0
    assert done.err == ""
    heading, *lines = done.out.splitlines()
    assert heading.split()[:3] == ["device", "node", "kind"]
    node, server = (peer.endpoint for peer in peers)
    assert [line.split()[:2] for line in lines] == [
        ["RPC0", node],
        ["RPC1", node],
        ["RPC2", server],
    ]
    ours = [line for line in lines if f"ringline {__version__}, level {EXTENSION_LEVEL}" in line]
    assert len(ours) == 2
    assert "stock" in lines[2]
    assert "…" not in done.out


def test_memory_is_shown_in_mib(rpc):
    table = ringline("devices", "--rpc", rpc).out.splitlines()
    devices = json.loads(ringline("devices", "--rpc", rpc, "--json").out)["devices"]
    totals = [int(line.split()[4]) for line in table[1:]]
    assert totals == [device["memory_total"] // MIB for device in devices]
