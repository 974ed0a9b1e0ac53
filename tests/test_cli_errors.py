"""What goes wrong is one sentence on stderr and exit code 1; wrong usage is 2."""

from __future__ import annotations

import http.server
import os
import signal
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import make_model
from make_model import ModelSpec
from tests.commands import ringline, running
from tests.peers.dead_ends import refusing_endpoint
from tests.peers.process_tree import children
from tests.peers.processes import ROOT, environment, patience
from tests.rings import open_peers

#: how long a command may take to notice that a node is gone; far less than RINGLINE_TIMEOUT.
PROMPTLY = 30.0
PROMPT = ("-p", "Go", "-n", 4)


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec())


def the_error(*arguments: object, env: dict[str, str] | None = None) -> str:
    """The sentence of a command that fails; it printed nothing that a program would read."""
    done = ringline(*arguments, env=env)
    assert done.code == 1, done.err
    assert done.out == ""
    return done.error


@contextmanager
def http_server() -> Iterator[str]:
    """A server that speaks another protocol; its endpoint."""

    class Quiet(http.server.BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def greeter(words: bytes) -> Iterator[str]:
    """A server that says something to everybody and then waits; its endpoint."""

    class Greet(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.sendall(words)
            while self.request.recv(4096):
                pass

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Greet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def test_a_model_that_is_not_there_is_named(tmp_path):
    path = tmp_path / "absent.gguf"
    assert the_error("generate", "-m", path, *PROMPT) == f"there is no model file {path}"


def test_a_file_that_is_no_gguf_is_named(tmp_path):
    path = tmp_path / "text.gguf"
    path.write_text("This is a text.")
    assert the_error("generate", "-m", path, *PROMPT).startswith(f"{path} is not a GGUF file")


def test_a_gguf_that_is_cut_short_is_named(small, tmp_path):
    path = tmp_path / "short.gguf"
    path.write_bytes(small.read_bytes()[:100_000])
    sentence = the_error("generate", "-m", path, *PROMPT)
    assert str(path) in sentence
    assert "within the file bounds" in sentence


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "give a prompt: either -p TEXT or -f FILE"),
        (["-p", "Go", "-f", "README.md"], "give a prompt: either -p TEXT or -f FILE"),
        (["-f", "/nowhere/prompt"], "/nowhere/prompt cannot be read: No such file or directory"),
        (["-f", "."], "cannot be read: Is a directory"),
        ([*PROMPT, "-hf", "user/model"], "two models are named"),
        ([*PROMPT, "-c", -1], "n_ctx is -1"),
        ([*PROMPT, "-ts", "1"], "there are none: add --rpc"),
        ([*PROMPT, "--device", "RPC0"], "no device 'RPC0'; this ring has: CPU"),
        ([*PROMPT, "--rpc", "a:b:c"], "'a:b:c'"),
        ([*PROMPT, "--rpc", "127.0.0.1:x"], "'127.0.0.1:x'"),
        ([*PROMPT, "--rpc", "127.0.0.1:1", "--local-stages", 2], "use one of them"),
    ],
)
def test_what_cannot_be_done_is_told(arguments, reason, small):
    assert reason in the_error("generate", "-m", small, *arguments)


@pytest.mark.model
def test_a_prompt_without_a_token_is_told(model_path):
    """A model that begins every text with a token of its own has something to go on."""
    done = ringline("generate", "-m", model_path, "-p", "")
    assert (done.code, done.out) == (1, "")
    assert done.error == "the prompt is empty: it needs at least one token"


def test_a_prompt_longer_than_the_context_is_told_with_both_sizes(small):
    done = ringline("generate", "-m", small, "-p", "word " * 2000, "-c", 256)
    assert (done.code, done.out) == (1, "")
    assert "tokens and the context holds 256" in done.error


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--device", "RPC0,RPC7"], "no device 'RPC7'; this ring has: RPC0, RPC1, CPU"),
        (["--device", "RPC0,RPC0"], "'RPC0' is named twice"),
        (["-ts", "1,1,1"], "3 shares for 2 devices"),
        (["--device", "RPC0", "-ts", "1,1"], "2 shares for 1 devices"),
        (["-ts", "0,0"], "one is more than 0"),
        (["-ts", "1,-1"], "shares are 0 or more"),
        (["-ts", "1;1"], "'1;1' is no number"),
    ],
)
def test_a_contradictory_plan_is_refused(arguments, reason, small, two_nodes):
    assert reason in the_error("generate", "-m", small, *PROMPT, "--rpc", two_nodes, *arguments)


@pytest.fixture(scope="module")
def two_nodes():
    with ExitStack() as stack:
        yield ",".join(peer.endpoint for peer in open_peers(stack, "rr"))


@pytest.mark.parametrize("command", ["generate", "devices"])
def test_a_node_that_nobody_runs_is_named(command, small):
    model = ["-m", small, *PROMPT] if command == "generate" else []
    with refusing_endpoint() as endpoint:
        sentence = the_error(command, "--rpc", endpoint, *model)
    assert sentence.startswith(f"node {endpoint}: ")
    assert "is ringline serve running there?" in sentence


def test_a_host_that_nobody_knows_is_named_with_what_to_do():
    sentence = the_error("devices", "--rpc", "nowhere.invalid:50052")
    assert sentence.startswith("node nowhere.invalid:50052: the host name cannot be resolved (")
    assert sentence.endswith("write its address, or make the name known to this machine")


def test_an_http_server_is_told_from_a_node(small):
    """It waits for the end of a line, which HELLO does not have."""
    with http_server() as endpoint:
        sentence = the_error("generate", "--rpc", endpoint, "-m", small, *PROMPT)
    assert sentence.startswith(f"node {endpoint}: HELLO: ")
    assert "it is an HTTP server" in sentence


@pytest.mark.parametrize(
    ("words", "who"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n", "it is an SSH server"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "it is an HTTP server"),
        (b"220 mail.example.org ESMTP\r\n", "it says '220 mail"),
        (bytes(64), "a reply of 0 bytes where 28 were expected"),
    ],
    ids=["ssh", "http", "mail", "zeros"],
)
def test_a_server_that_speaks_first_is_told_from_a_node(words, who):
    with greeter(words) as endpoint:
        sentence = the_error("devices", "--rpc", endpoint)
    assert sentence.startswith(f"node {endpoint}: HELLO: does not answer like a ggml RPC server")
    assert who in sentence


def test_a_server_that_speaks_tls_asks_for_the_flags_of_tls():
    with greeter(bytes([0x15, 3, 1, 0, 2, 2, 70])) as endpoint:
        sentence = the_error("devices", "--rpc", endpoint)
    assert sentence.startswith(f"node {endpoint}: it speaks TLS: give --tls-cert, --tls-key and")


@pytest.mark.parametrize("rpc", ["", ","])
def test_devices_of_no_node_are_an_error(rpc):
    assert "--rpc names no node" in the_error("devices", "--rpc", rpc)


@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_node_killed_while_generating_is_named(victim, endless_model):
    with ExitStack() as stack:
        nodes = open_peers(stack, "rrr")
        rpc = ",".join(node.endpoint for node in nodes)
        arguments = ["generate", "-m", endless_model, "--rpc", rpc, "-p", "Go", "-ts", "1,1,1"]
        command = stack.enter_context(running(*arguments))
        command.wait_for_text()
        nodes[victim].kill()
        done = command.finish(PROMPTLY)
    assert done.code == 1
    assert done.error.startswith(f"node {nodes[victim].endpoint}: ")


def test_a_node_of_its_own_killed_while_generating_is_named(endless_model):
    with running("generate", "-m", endless_model, "--local-stages", 2, "-p", "Go") as command:
        command.wait_for_text()
        first, _ = children(command.pid)
        os.kill(first, signal.SIGKILL)
        done = command.finish(PROMPTLY)
    assert done.code == 1
    assert done.error.startswith("node 127.0.0.1:")


@pytest.mark.parametrize(("level", "shown"), [("0", False), ("", False), ("1", True)])
def test_a_traceback_is_shown_where_debugging_was_asked_for(level, shown, tmp_path):
    arguments = ["generate", "-m", tmp_path / "absent.gguf", *PROMPT]
    done = ringline(*arguments, env={"RINGLINE_DEBUG": level})
    assert done.code == 1
    assert done.err.splitlines()[-1].startswith("error: there is no model file")
    assert ("Traceback" in done.err) == shown


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "Usage: ringline"),
        (["nothing"], "No such command 'nothing'"),
        (["generate", "--nothing"], "No such option: --nothing"),
        (["generate", "-n", "many"], "'-n'"),
        (["generate", "-t", 0], "'-t'"),
        (["generate", "--local-stages", -1], "'--local-stages'"),
        (["devices"], "Missing option '--rpc'"),
        (["demo", "extra"], "extra"),
    ],
)
def test_wrong_usage_is_2(arguments, reason):
    done = ringline(*arguments)
    assert done.code == 2
    assert reason in done.out + done.err
    assert "Traceback" not in done.err


def test_a_reader_that_leaves_early_is_no_error_to_talk_about(endless_model):
    """As in `ringline generate ... | head -c 1`."""
    arguments = ["generate", "-m", str(endless_model), "-p", "Go"]
    with subprocess.Popen(
        [sys.executable, "-m", "ringline", *arguments],
        cwd=ROOT,
        env=environment({"RINGLINE_DEBUG": "0"}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read(1)
        process.stdout.close()
        assert process.wait(patience(PROMPTLY)) == 1
        said = process.stderr.read().decode()
    assert "Traceback" not in said
    assert "Exception" not in said
