"""`ringline chat --server`: the same conversation over HTTP, and what a server may do to it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import contextmanager

import pytest

from tests.api_server import api_server
from tests.commands import piped
from tests.peers.processes import patience
from tests.terminal import in_terminal

KEY = "a secret"
LINES = ["Go", "Go on", "/reset", "/system Be brief", "Go"]


@pytest.fixture(scope="module")
def server(endless_model):
    """A server of a model whose answers do not end, with a key."""
    options = ["--parallel", 2, "-c", 16384, "--api-key", KEY]
    with api_server(endless_model, *options) as found:
        yield found


@contextmanager
def chatting(url, cache, *more):
    arguments = ["chat", "--server", url, "--api-key", KEY, *more]
    with in_terminal(arguments, {"RINGLINE_CACHE": str(cache)}) as terminal:
        terminal.wait_for("Ctrl-D ends the chat")
        yield terminal


def idle(server):
    """Wait until no slot is busy; the server wants its key for that."""
    deadline = time.monotonic() + patience(60)
    while time.monotonic() < deadline:
        answer = server.ask("/slots", headers={"Authorization": f"Bearer {KEY}"})
        if not any(slot["is_processing"] for slot in answer.json()):
            return True
        time.sleep(0.02)
    return False


def test_a_server_is_talked_to_as_a_ring_of_ones_own_is(server, endless_model):
    same = ["-n", 8, "--temp", 0]
    there = piped(LINES, "chat", "--server", server.url, "--api-key", KEY, *same)
    here = piped(LINES, "chat", "-m", endless_model, "--local-stages", 1, "-t", 1, *same)
    assert (there.code, here.code) == (0, 0), there.err + here.err
    assert there.out == here.out
    assert there.out.count("\n") == 3
    for line in ("8 tokens", "prompt ", "cut off by -n", "the system prompt is set"):
        assert line in there.err, there.err


def test_ctrl_c_stops_the_answer_there_too_and_frees_its_slot(server, tmp_path):
    with chatting(server.url, tmp_path) as terminal:
        terminal.enter("Go")
        terminal.wait_for(r"Go[^>]*\n.*[a-z]{8}")
        terminal.type("\x03")
        terminal.wait_for(r"\(first token after .*stopped\)")
        assert idle(server)
        terminal.enter("On")
        terminal.wait_for(r"On[^>]*\n.*[a-z]{8}")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        terminal.enter("\x04", end="")
        assert terminal.finish() == 0


def test_a_key_is_asked_for_by_name_and_taken_from_the_environment(server):
    refused = piped(["Go"], "chat", "--server", server.url, "--api-key", "wrong")
    assert refused.code == 1
    assert "wants an API key (--api-key, RINGLINE_API_KEY)" in refused.error
    env = {"RINGLINE_API_KEY": KEY}
    taken = piped(["Go"], "chat", "--server", f"{server.url}/v1", "-n", 2, env=env)
    assert taken.code == 0, taken.err


def test_a_lost_engine_is_an_error_of_one_answer(server, tmp_path):
    with chatting(server.url, tmp_path) as terminal:
        terminal.enter("Go")
        terminal.wait_for(r"Go[^>]*\n.*[a-z]{8}")
        os.kill(server.engine_pid(), signal.SIGKILL)
        terminal.wait_for("error: .*SIGKILL")
        server.wait_for("/health", 200)
        terminal.enter("/reset")
        terminal.wait_for("forgotten")
        terminal.enter("On")
        terminal.wait_for(r"On[^>]*\n.*[a-z]{8}")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        terminal.enter("\x04", end="")
        assert terminal.finish() == 0


def test_what_is_no_server_is_said_at_once(server):
    closed = piped([], "chat", "--server", "127.0.0.1:9")
    assert closed.code == 1
    assert "127.0.0.1:9: the connection failed" in closed.error
    elsewhere = piped([], "chat", "--server", f"{server.url}/nowhere", "--api-key", KEY)
    assert elsewhere.code == 1
    assert "answers 404: there is nothing at /nowhere/v1/models" in elsewhere.error
    for url in ("ftp://host", "http://host:port", ""):
        done = piped([], "chat", "--server", url) if url else piped([], "chat")
        assert done.code == 1
        assert done.error.startswith("--server" if url else "no model is named")


def test_a_server_answers_with_its_own_model(server):
    done = piped([], "chat", "--server", server.url, "-m", "some.gguf")
    assert done.code == 1
    assert "leave out -m" in done.error
