"""`ringline chat` over a ring of its own: in a terminal and in a pipe."""

from __future__ import annotations

from contextlib import contextmanager

import pytest

from tests.commands import piped
from tests.peers.processes import run_python
from tests.terminal import in_terminal

SECONDS = 120.0
#: an answer has ended.
SPEED = r"\(first token after [\d.]+ s; (\d+) tokens[^)]*\)"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """A cache folder of our own: the history of whoever runs the tests is not touched."""
    return tmp_path_factory.mktemp("cache")


def arguments(model, *more):
    return ["chat", "-m", model, "--local-stages", 1, "-t", 1, "--temp", 0, *more]


@contextmanager
def chatting(model, cache, *more):
    with in_terminal(arguments(model, *more), {"RINGLINE_CACHE": str(cache)}) as terminal:
        terminal.wait_for("Ctrl-D ends the chat", SECONDS)
        yield terminal


def answers_of(lines, *command):
    done = piped(lines, *command)
    assert done.code == 0, done.err
    return done


@pytest.mark.model
def test_turns_are_remembered_until_reset_and_ctrl_d_ends(model_path, cache):
    with chatting(model_path, cache, "-n", 24) as terminal:
        terminal.enter("My name is Bob. Say hello.")
        terminal.wait_for("Bob")  # what was typed
        first = terminal.wait_for(r"prompt (\d+) tokens")
        terminal.enter("And now?")
        assert int(terminal.wait_for(r"prompt (\d+) tokens")[1]) > int(first[1]) + 20
        terminal.enter("/reset")
        terminal.wait_for("forgotten")
        terminal.enter("My name is Bob. Say hello.")
        assert terminal.wait_for(r"prompt (\d+) tokens")[1] == first[1]
        terminal.enter("\x04", end="")
        assert terminal.finish() == 0


def test_ctrl_c_stops_the_answer_and_not_the_program(endless_model, cache):
    with chatting(endless_model, cache) as terminal:
        terminal.enter("Go")
        terminal.wait_for(r"Go[^>]*\n.*[a-z]{8}")
        terminal.type("\x03")
        terminal.wait_for(r"\(first token after .*stopped\)")
        terminal.enter("\x03", end="")  # no answer is under way: it clears the line
        terminal.wait_for("/quit ends the chat")
        terminal.enter("On")
        terminal.wait_for(r"On[^>]*\n.*[a-z]{8}")
        terminal.type("\x03")
        terminal.wait_for("stopped")
        terminal.enter("/quit")
        assert terminal.finish() == 0


def test_what_was_typed_is_there_the_next_time_for_its_owner_alone(endless_model, cache):
    with chatting(endless_model, cache, "-n", 2) as terminal:
        terminal.enter("a rare word")
        terminal.wait_for(SPEED)
        terminal.enter("\x04", end="")
        assert terminal.finish() == 0
    history = cache / "chat-history"
    assert history.stat().st_mode & 0o777 == 0o600
    with chatting(endless_model, cache, "-n", 2) as terminal:
        terminal.enter("\x1b[A", end="")  # up
        terminal.wait_for("a rare word")
        terminal.type("\x03")
        terminal.enter("\x04", end="")
        assert terminal.finish() == 0


@pytest.mark.model
def test_the_system_prompt_changes_what_is_sent(model_path):
    lines = ["What are you?", "/reset", "/system Always answer in French.", "What are you?"]
    lines += ["/system", "/system -", "/reset", "What are you?", "/reset"]
    done = answers_of(lines, *arguments(model_path, "-n", 12))
    plain, french, again = [line for line in done.out.splitlines() if line]
    assert plain == again != french
    assert "\nAlways answer in French.\n" in done.err
    started = answers_of(
        ["What are you?"], *arguments(model_path, "-n", 12, "-sys", "Always answer in French.")
    )
    assert started.out == french + "\n"


def test_in_a_pipe_answers_go_to_stdout_and_the_rest_to_stderr(endless_model):
    lines = ["/help", "Go", "", "/nonsense", " /etc", "x" * 9000, "/quit", "never"]
    done = answers_of(lines, *arguments(endless_model, "-n", 5, "-c", 512))
    assert len(done.out.splitlines()) == 2
    assert done.err.count("first token after") == 2
    assert "/reset" in done.err
    assert "/nonsense is no command" in done.err
    assert "error: the prompt has" in done.err


def test_a_full_context_says_what_to_do(endless_model):
    done = piped(["Go"], *arguments(endless_model, "-c", 256))
    assert "the context is full: /reset begins anew" in done.err


def test_chat_needs_nothing_of_the_server():
    check = "import sys, ringline.cli.chat; print([m for m in sys.modules if m in "
    check += "('ringline.api', 'fastapi', 'llama_cpp', 'prompt_toolkit')])"
    assert run_python(["-c", check]) == "[]\n"
