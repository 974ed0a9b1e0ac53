"""A ring over mutual TLS gives the same tokens as one without, whatever way hidden states take."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path as FilePath

import pytest

from ringline.client.edge import Path
from ringline.engine.doctor import node as doctor_node
from ringline.engine.doctor.examine import examine
from ringline.engine.doctor.findings import Grade, would_run
from ringline.engine.job import Request
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.messages import EngineSpec
from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN, TlsFiles
from ringline.wire.extension import RecvTensor
from tests.commands import ringline
from tests.peers.processes import Peer, ringline_node, run_stock_client
from tests.ring_certificates import Authority, flags, variables
from tests.rings import run_ring
from tests.server_client import Client, wait_for


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ring"))


@pytest.fixture(scope="module")
def coordinator(authority: Authority) -> TlsFiles:
    return authority.machine("coordinator", hosts=[])


@pytest.fixture(scope="module")
def nodes(authority: Authority) -> Iterator[list[Peer]]:
    """Two nodes, each with a certificate of its own; the first one has a plain port as well."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                ringline_node("--threads=1", *flags(authority.machine(name)), *more)
            )
            for name, more in (("alpha", ["--plain-port=0"]), ("beta", []))
        ]


@pytest.fixture
def with_tls(coordinator: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment says which certificate is ours."""
    for name, file in variables(coordinator).items():
        monkeypatch.setenv(name, file)


def plain_endpoint(node: Peer) -> str:
    (line,) = [line for line in node.log().splitlines() if line.startswith("  plain ")]
    return line.split()[1].rstrip(",")


@pytest.mark.model
@pytest.mark.parametrize("path", [Path.HUB, Path.DIRECT, Path.RENDEZVOUS])
def test_tokens_are_the_same_over_tls(path, nodes, with_tls, model_path, local_ids):
    run = run_ring("decode", model_path, nodes, path=path)
    assert run.ids == local_ids("decode")
    assert set(run.paths) == {path.value}
    if path is not Path.HUB:
        assert "shows the certificate of alpha" in nodes[1].log(), "the peer dialled with TLS"


@pytest.mark.model
def test_a_prompt_in_pieces_is_the_same_over_tls(nodes, with_tls, model_path, local_ids):
    assert run_ring("prompt", model_path, nodes).ids == local_ids("prompt")


@pytest.mark.model
def test_a_stock_client_uses_the_plain_port_beside_tls(nodes, coordinator, model_path, local_ids):
    with Client.extended(nodes[0].endpoint, tls=coordinator) as beside:
        result = run_stock_client("decode", model_path, [plain_endpoint(nodes[0])])
        beside.ping()
    assert result["ids"] == local_ids("decode")


@pytest.mark.model
def test_a_node_of_another_ca_gets_nothing_from_a_peer(
    nodes, authority, tmp_path, monkeypatch, model_path, local_ids
):
    """The coordinator trusts both CAs and is trusted by both nodes; the source trusts one."""
    other = Authority.make(tmp_path / "other")
    both = tmp_path / "both.pem"
    both.write_text(FilePath(authority.ca).read_text() + FilePath(other.ca).read_text())
    for name, file in variables(replace(authority.machine("judge"), ca=str(both))).items():
        monkeypatch.setenv(name, file)
    target_files = replace(other.machine("target"), ca=str(both))
    with ringline_node("--threads=1", *flags(target_files)) as target:
        run = run_ring("decode", model_path, [nodes[0], target])
    assert run.ids == local_ids("decode")
    assert set(run.paths) == {"hub"}
    assert "its certificate is not of the CA that we trust (--tls-ca)" in nodes[0].log()


def test_a_node_stops_waiting_for_data_when_its_client_has_gone(nodes, coordinator):
    with Client.extended(nodes[1].endpoint, level=4, tls=coordinator) as client:
        number = f"session {client.greeting.session:08x}"
        tensor = client.alloc(64).vector(1, 16)
        client.post(RecvTensor(tensor.pack(), 0, 64, b"t" * 16, 100_000))
    wait_for("the end of the session", lambda: f"{number} of" in nodes[1].log())


def test_the_doctor_examines_a_ring_over_tls(nodes, coordinator, monkeypatch):
    """Of how fast this machine is while it runs tests nothing is asserted."""
    monkeypatch.setattr(doctor_node, "_SLOW_TRIP", 10.0)
    monkeypatch.setattr(doctor_node, "_SLOW_WRITE", 1)
    findings = examine([Endpoint.parse(node.endpoint) for node in nodes], coordinator)
    assert would_run(findings)
    assert {finding.grade for finding in findings} == {Grade.OK}
    assert [f.text.endswith("over TLS") for f in findings if f.check == "greet"] == [True, True]
    assert [f.facts["path"] for f in findings if f.check == "way"] == ["rendezvous"] * 2


def test_the_doctor_names_a_certificate_that_is_missing(nodes):
    (*_, finding) = examine([Endpoint.parse(nodes[0].endpoint)], PLAIN)
    assert (finding.grade, finding.check) == (Grade.PROBLEM, "tls")
    assert "give --tls-cert" in finding.text
    assert "--tls-ca" in finding.advice


def test_a_command_takes_the_files_as_flags_or_from_the_environment(nodes, coordinator):
    rpc = f"--rpc={nodes[0].endpoint}"
    by_flags = ringline("devices", "--json", rpc, *flags(coordinator))
    by_environment = ringline("devices", "--json", rpc, env=variables(coordinator))
    for done in (by_flags, by_environment):
        assert (done.code, done.err) == (0, "")
        assert json.loads(done.out)["devices"][0]["endpoint"] == nodes[0].endpoint


@pytest.mark.model
def test_a_text_over_tls_on_the_command_line(nodes, coordinator, model_path):
    rpc = ",".join(node.endpoint for node in nodes)
    rest = ["-m", str(model_path), "-p", "Water boils", "-n", "6", "--temp=0"]
    secure = ringline("generate", f"--rpc={rpc}", *flags(coordinator), *rest)
    local = ringline("generate", "--local-stages=2", *rest, env=variables(coordinator))
    assert (secure.code, local.code) == (0, 0), secure.err + local.err
    assert secure.out == local.out != ""


@pytest.mark.model
def test_an_engine_in_a_process_of_its_own_gets_the_files(nodes, coordinator, model_path):
    endpoints = tuple(node.endpoint for node in nodes)
    spec = EngineSpec(
        model=str(model_path), nodes=endpoints, tls=coordinator, n_ctx=256, parallel=1
    )
    with EngineProcess(spec) as engine:
        pieces = list(engine.submit("Water boils", Request(n_predict=4)))
    assert pieces
