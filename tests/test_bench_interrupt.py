"""A measurement that is ended takes its servers with it, whatever signal ends it."""

from __future__ import annotations

import signal
import time

import pytest

from tests.commands import Running, running
from tests.peers.process_tree import descendants, watched
from tests.peers.processes import patience

SECONDS = 60.0


def wait_for_talk(command: Running, words: str) -> None:
    """Wait until it says this on stderr."""
    deadline = time.monotonic() + patience(120)
    while words not in (said := command.err_path.read_text("utf-8", "replace")):
        assert command.process.poll() is None, said
        assert time.monotonic() < deadline, said
        time.sleep(0.05)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_ended_bench_serve_leaves_no_server_behind(number, endless_model):
    arguments = ["bench", "serve", "-m", endless_model, "--streams", 2, "--requests", 0]
    with running(*arguments) as command:
        wait_for_talk(command, "round 1 of")
        # Two nodes with sessions, an engine, an API with an engine of its own.
        with watched(descendants(command.pid)[1:]) as servers:
            assert len(servers) >= 5
            command.process.send_signal(number)
            done = command.finish(SECONDS)
            assert done.code == 130, done.err
            assert "Traceback" not in done.err
            assert [server.pid for server in servers if not server.wait_gone(SECONDS)] == []


def test_an_ended_bench_groups_leaves_no_server_behind(endless_model):
    with running("bench", "groups", "-m", endless_model, "--streams", 2) as command:
        wait_for_talk(command, "round 1 of")
        with watched(descendants(command.pid)[1:]) as servers:
            assert len(servers) >= 2
            command.process.send_signal(signal.SIGTERM)
            done = command.finish(SECONDS)
            assert done.code == 130, done.err
            assert [server.pid for server in servers if not server.wait_gone(SECONDS)] == []
