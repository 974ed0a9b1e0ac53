"""`ringline serve` on the command line: flags, errors in one sentence, exit codes."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from tests.peers.processes import ROOT, environment, patience, ringline_node
from tests.server_client import Client


def serve(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a node that is expected to end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "ringline", "serve", *arguments],
        cwd=ROOT,
        env=environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
    )


def the_sentence(done: subprocess.CompletedProcess[str]) -> str:
    """What an unusable node says: one line on stderr, nothing on stdout, exit code 1."""
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    return line


def test_a_port_that_is_taken_is_told_in_one_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = the_sentence(serve(f"--port={port}"))
    assert f"127.0.0.1:{port}" in line
    assert "in use" in line
    assert line.endswith("end it, or choose another port")


@pytest.mark.parametrize("host", ["192.0.2.1", "nowhere.invalid"])
def test_a_host_that_is_not_this_machine_is_told_with_what_to_give(host):
    line = the_sentence(serve(f"--host={host}", "--port=0", "--insecure"))
    assert line.startswith(f"error: cannot listen on {host}:0 (")
    assert line.endswith("give an address or a name of this machine")


def test_an_unknown_device_is_told_with_those_that_there_are():
    line = the_sentence(serve("--port=0", "--device=CPU,NPU7"))
    assert "'NPU7'" in line
    assert line.endswith("this machine has: CPU")


def test_an_unusable_peer_is_told():
    assert "--allow-peer '10.0.0.0/77'" in the_sentence(serve("-p0", "--allow-peer=10.0.0.0/77"))


@pytest.mark.parametrize("flag", ["--port=65536", "--threads=0", "--max-sessions=0"])
def test_a_number_out_of_its_range_is_a_usage_error(flag):
    done = serve(flag)
    assert done.returncode == 2
    assert flag.split("=")[0] in done.stderr


@pytest.mark.parametrize("device", ["CPU,CPU", "CPU/CPU"])
def test_devices_are_listed_with_commas_or_as_llama_cpp_lists_them(device):
    with ringline_node("-d", device, "-t", "1", "-H", "127.0.0.1") as node:
        assert node.endpoint.startswith("127.0.0.1:")
        with Client.extended(node.endpoint) as client:
            assert len(client.greeting.about["devices"]) == 2


def test_listening_for_other_machines_is_warned_about_loudly():
    with ringline_node("-H", "0.0.0.0", "--insecure") as node:
        assert node.endpoint.startswith("0.0.0.0:")
        assert "Never expose it to an open network" in node.log()
    with ringline_node() as node:
        assert "Never expose" not in node.log()


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_a_node_that_others_reach_needs_tls_or_a_word_for_it(host):
    if host == "::" and not has_ipv6():
        pytest.skip("this machine has no IPv6")
    line = the_sentence(serve("--port=0", "-H", host))
    assert "other machines reach" in line
    assert "--tls-cert" in line
    assert line.endswith("or say --insecure")


def test_a_plain_port_stands_beside_tls_alone():
    assert "--plain-port stands beside" in the_sentence(serve("--port=0", "--plain-port=0"))


def test_a_node_listens_on_ipv6_loopback():
    if not has_ipv6():
        pytest.skip("this machine has no IPv6 loopback")
    with ringline_node("-H", "::1") as node:
        assert node.endpoint.startswith("[::1]:")
        with Client.extended(node.endpoint) as client:
            client.ping()
        assert "Never expose" not in node.log()


def has_ipv6() -> bool:
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


def test_debug_logs_commands_and_then_sizes_and_times():
    for level, expected in (("1", ": GET_ALIGNMENT"), ("2", ": GET_ALIGNMENT of 4 bytes")):
        with (
            ringline_node(env={"RINGLINE_DEBUG": level}) as node,
            Client.extended(node.endpoint) as client,
        ):
            client.send(1, bytes(4))
            client.reply()
            assert f"{expected}\n" in node.log()
