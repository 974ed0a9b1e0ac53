"""Ctrl-C ends `ringline generate` within seconds; its own nodes never outlive it."""

from __future__ import annotations

import signal
import time

import pytest

from tests.commands import Running, running
from tests.peers.process_tree import Watched, descendants, watched
from tests.peers.processes import patience

#: nodes of its own: each is a gatekeeper and at least one session process.
STAGES = 2
SECONDS = 30.0


def generating(model, *arguments: object):
    return running(
        "generate", "-m", model, "--local-stages", STAGES, "-p", "Go", "-t", 1, *arguments
    )


def wait_for_nodes(command: Running) -> None:
    """The nodes are up and have sessions; the model is not loaded yet, or has just been."""
    deadline = time.monotonic() + patience(60)
    while len(descendants(command.pid)) < 1 + 2 * STAGES:
        assert command.process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)


def assert_all_gone(processes: list[Watched]) -> None:
    assert [process.pid for process in processes if not process.wait_gone(SECONDS)] == []


def test_ctrl_c_ends_a_text_and_the_nodes(endless_model):
    with generating(endless_model) as command:
        command.wait_for_text()
        with watched(descendants(command.pid)[1:]) as nodes:
            assert len(nodes) >= 2 * STAGES
            command.process.send_signal(signal.SIGINT)
            done = command.finish(SECONDS)
            assert done.code == 130
            assert "Traceback" not in done.err
            assert_all_gone(nodes)


@pytest.mark.parametrize("attempt", range(3))
def test_ctrl_c_is_not_lost_while_this_machine_computes(attempt, endless_model):
    """It arrives in C, and the next Python is a callback's first line."""
    arguments = ["--device", "CPU,RPC0", "-ts", "9,1"]
    with generating(endless_model, *arguments) as command:
        command.wait_for_text()
        command.process.send_signal(signal.SIGINT)
        done = command.finish(SECONDS)
    assert done.code == 130
    assert "Exception ignored" not in done.err
    assert "Traceback" not in done.err


def test_ctrl_c_ends_a_load(endless_model):
    with generating(endless_model) as command:
        wait_for_nodes(command)
        with watched(descendants(command.pid)[1:]) as nodes:
            command.process.send_signal(signal.SIGINT)
            done = command.finish(SECONDS)
            assert done.code == 130
            assert "Traceback" not in done.err
            assert_all_gone(nodes)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nodes_end_with_a_coordinator_that_is_ended(number, endless_model):
    with generating(endless_model) as command:
        command.wait_for_text()
        with watched(descendants(command.pid)[1:]) as nodes:
            assert len(nodes) >= 2 * STAGES
            command.process.send_signal(number)
            command.process.wait()
            assert_all_gone(nodes)
