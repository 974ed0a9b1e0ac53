"""`ringline doctor` over real peers: what it finds, what it advises, and its verdict."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from ringline.client import greeting, stranger
from ringline.engine.doctor.examine import examine
from ringline.engine.doctor.findings import Finding, Grade, would_run
from ringline.engine.doctor.known import compute_here
from ringline.net.endpoint import Endpoint
from tests.commands import ringline
from tests.peers.dead_ends import deaf_endpoint, refusing_endpoint
from tests.peers.processes import Peer, patience, ringline_node
from tests.raw_nodes import endpoint_of, raw_node, read_banner
from tests.rings import open_peers
from tests.test_cli_errors import http_server

#: what is looked at, of a node with one device.
CHECKS = ["resolve", "greet", "version", "engine", "round-trip", "throughput", "memory", "result"]


@pytest.fixture(scope="module")
def peers() -> Iterator[list[Peer]]:
    """Two ringline nodes and a stock server."""
    with ExitStack() as stack:
        yield open_peers(stack, "rrs")


def look(*endpoints: str) -> list[Finding]:
    return examine([Endpoint.parse(endpoint) for endpoint in endpoints])


def about(findings: list[Finding], subject: str) -> dict[str, Finding]:
    return {finding.check: finding for finding in findings if finding.subject == subject}


def test_the_known_graph_is_what_numpy_says():
    a, b, c = np.random.default_rng(64).uniform(-1, 1, (3, 64, 64)).astype(np.float32)
    total = b @ a.T + c  # ggml multiplies rows by rows
    exponents = np.exp(total - total.max(axis=1, keepdims=True))
    expected = exponents / exponents.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(compute_here(), expected, atol=1e-5)
    assert expected.std() > 0.01  # far from what an idle device would leave behind


def test_two_good_nodes_have_nothing_to_complain_about(peers):
    one, two = (peer.endpoint for peer in peers[:2])
    findings = look(one, two)
    assert {finding.grade for finding in findings} == {Grade.OK}
    assert [finding.check for finding in findings] == [*CHECKS, *CHECKS, "way", "way"]
    assert would_run(findings)
    there, back = findings[-2:]
    assert (there.subject, there.facts["used"]) == (f"{one} -> {two}", True)
    assert (back.subject, back.facts["used"]) == (f"{two} -> {one}", False)
    assert {there.facts["path"], back.facts["path"]} == {"rendezvous"}
    result = about(findings, one)["result"]
    assert result.facts["difference"] == 0.0


def test_a_stock_server_is_examined_and_the_hub_is_announced(peers):
    node, stock = peers[0].endpoint, peers[2].endpoint
    findings = look(node, stock)
    assert would_run(findings)
    found = about(findings, stock)
    assert found["version"].grade is Grade.WARNING
    assert "stock server" in found["version"].text
    assert found["result"].grade is Grade.OK
    way = about(findings, f"{node} -> {stock}")["way"]
    assert (way.grade, way.facts["path"]) == (Grade.WARNING, "hub")
    assert f"run a newer ringline serve on {stock}" in way.advice


def test_a_node_alone_has_no_ways(peers):
    findings = look(peers[0].endpoint)
    assert [finding.check for finding in findings] == CHECKS


@contextmanager
def http_endpoint() -> Iterator[str]:
    with http_server() as endpoint, pytest.MonkeyPatch.context() as patch:
        patch.setattr(stranger, "_PATIENCE", patience(30))  # it answers, maybe not in a second
        yield endpoint


@pytest.mark.parametrize(
    ("dead_end", "check", "text", "advice"),
    [
        (refusing_endpoint, "connect", "Connection refused", "start ringline serve there"),
        (deaf_endpoint, "greet", "takes connections and says nothing", "run ringline serve"),
        (http_endpoint, "greet", "it is an HTTP server", "run ringline serve"),
    ],
)
def test_what_is_no_node_is_a_problem_with_advice_and_the_others_are_examined(
    dead_end, check, text, advice, peers, monkeypatch
):
    monkeypatch.setattr(greeting, "HELLO_TIMEOUT", patience(5.0))
    with dead_end() as endpoint:
        findings = look(endpoint, peers[0].endpoint)
    assert not would_run(findings)
    problem = about(findings, endpoint)[check]
    assert problem.grade is Grade.PROBLEM
    assert text in problem.text
    assert advice in problem.advice
    assert list(about(findings, peers[0].endpoint)) == CHECKS


def test_a_name_that_nobody_knows_is_a_problem():
    (problem,) = look("nowhere.invalid:5")
    assert (problem.grade, problem.check) == (Grade.PROBLEM, "resolve")


@contextmanager
def node_with(prelude: str) -> Iterator[str]:
    """A node that Python code has spoilt; its endpoint."""
    with raw_node("--threads=1", prelude=prelude) as process:
        yield endpoint_of(read_banner(process))


IDLE = "import ringline.server.context as c; c.Context.compute = lambda *_: None"
UNABLE = "import ringline.ggml.devices as d; d.Device.supports_op = lambda *_: False"
DYING = "import os, ringline.server.context as c; c.Context.compute = lambda *_: os._exit(3)"
FULL = "import ringline.ggml.devices as d; d.Device.alloc_buffer = lambda *_: None"


@pytest.mark.parametrize(
    ("prelude", "check", "text"),
    [
        (IDLE, "result", "device 0 gives a wrong result"),
        (UNABLE, "result", "device 0 cannot compute MUL_MAT, ADD, SOFT_MAX"),
        (DYING, "failure", "GET_TENSOR: the connection was"),
        (FULL, "throughput", "no room for 4 MiB"),
    ],
)
def test_a_device_that_does_not_do_its_work_is_a_problem(prelude, check, text):
    with node_with(prelude) as endpoint:
        findings = look(endpoint)
    problem = about(findings, endpoint)[check]
    assert problem.grade is Grade.PROBLEM
    assert text in problem.text
    assert problem.advice


#: the first large write takes a second.
HELD_UP = """
import time, ringline.server.handlers.tensors as t
write, slow = t.set_tensor, [1.0]
def set_tensor(request, size, context):
    time.sleep(slow.pop() if slow and size > 1 << 20 else 0)
    return write(request, size, context)
t.set_tensor = set_tensor
"""


def test_a_link_is_not_slow_because_one_write_was_held_up():
    with node_with(HELD_UP) as endpoint:
        found = about(look(endpoint), endpoint)["throughput"]
    assert found.grade is Grade.OK, found


def test_a_way_that_the_operator_does_not_allow_is_a_warning_with_the_flag(peers):
    target = peers[0].endpoint
    with ringline_node("--allow-peer=192.0.2.0/24") as source:
        findings = look(source.endpoint, target)
    assert would_run(findings)
    way = about(findings, f"{source.endpoint} -> {target}")["way"]
    assert (way.grade, way.facts["path"]) == (Grade.WARNING, "hub")
    assert f"on {source.endpoint} look at --allow-peer" in way.advice
    assert about(findings, f"{target} -> {source.endpoint}")["way"].grade is Grade.OK


def test_an_older_node_is_to_be_updated(peers):
    with node_with("import ringline.wire.commands as c; c.EXTENSION_LEVEL = 3") as old:
        findings = look(peers[0].endpoint, old)
    assert about(findings, old)["version"].advice.endswith("update it")
    way = about(findings, f"{peers[0].endpoint} -> {old}")["way"]
    assert (way.grade, way.facts["path"]) == (Grade.OK, "direct")


@pytest.mark.parametrize("version", [(6, 0, 0), (7, 1, 0), (8, 0, 0)], ids=str)
def test_a_server_of_another_protocol_is_a_problem_that_names_both_versions(version):
    with node_with(f"import ringline.wire.commands as c; c.BASE_VERSION = {version}") as endpoint:
        problem = look(endpoint)[-1]
    assert (problem.grade, problem.check) == (Grade.PROBLEM, "greet")
    theirs = ".".join(map(str, version))
    assert problem.text.startswith(
        f"it speaks ggml RPC {theirs}, ringline 7.0.0: run a server from"
    )
    assert "ggml-rpc-server of the same llama.cpp version" in problem.advice


def the_json(*arguments: str) -> tuple[int, dict[str, Any]]:
    done = ringline("doctor", "--json", *arguments)
    assert done.err == ""
    return done.code, json.loads(done.out)


def test_the_command_prints_a_line_a_finding_and_a_verdict(peers):
    rpc = ",".join(peer.endpoint for peer in peers)
    done = ringline("doctor", "--rpc", rpc)
    assert (done.code, done.err) == (0, "")
    *lines, verdict = done.out.splitlines()
    assert {line.split()[0] for line in lines} == {"ok", "warning"}
    assert len(lines) == 3 * len(CHECKS) + 6
    assert verdict == "a ring over these nodes would run, with 2 warnings"
    code, found = the_json("--rpc", rpc)
    assert (code, found["would_run"]) == (0, True)
    assert [entry["check"] for entry in found["findings"]].count("way") == 6


def test_a_ring_that_would_not_run_is_exit_code_1(peers):
    with refusing_endpoint() as endpoint:
        rpc = f"{peers[0].endpoint},{endpoint}"
        done = ringline("doctor", "--rpc", rpc)
        code, found = the_json("--rpc", rpc)
    assert done.code == code == 1
    assert done.out.splitlines()[-1] == "a ring over these nodes would not run: 1 problem"
    assert found["would_run"] is False


def test_no_direct_path_is_wanted_where_the_setting_says_so(peers):
    rpc = ",".join(peer.endpoint for peer in peers[:2])
    done = ringline("doctor", "--rpc", rpc, env={"RINGLINE_P2P": "0"})
    assert done.code == 0
    assert "RINGLINE_P2P=0 says so" in done.out


def test_no_node_is_an_error():
    done = ringline("doctor", "--rpc", "")
    assert (done.code, done.out) == (1, "")
    assert "--rpc names no node" in done.error
