"""What goes wrong round `ringline api`: clients that leave, engines and nodes that die or hang.

Each test has a server of its own, over a small model whose texts do not end for many seconds.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import pytest

import make_model
from make_model import ModelSpec
from tests.api_server import READY, api_server, events
from tests.peers.dead_ends import kept_port
from tests.peers.process_tree import children, watched
from tests.peers.processes import patience, ringline_node
from tests.rings import open_peers
from tests.scraping import scrape

SECONDS = 60.0
#: seconds after which an engine counts as hung; a busy machine lets one wait for seconds.
HANG = 6
#: two slots of 16,384 tokens.
LONG = ("--parallel", 2, "-c", 32768)
ENDLESS = {"prompt": "Go on", "temperature": 0}


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )


@pytest.fixture(scope="module")
def shared(small):
    with api_server(small, *LONG, "--queue", 1) as server:
        yield server


@contextmanager
def connection(server):
    """A connection to a server, which is closed after the block."""
    found = http.client.HTTPConnection(
        server.url.removeprefix("http://"), timeout=patience(SECONDS)
    )
    try:
        yield found
    finally:
        found.close()


def post(found, body, path="/v1/completions"):
    """Send a request, and do not wait for its answer."""
    found.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})


def begin_stream(found, body=ENDLESS, path="/v1/completions"):
    """Send a request and wait for the first event of its stream."""
    post(found, {**body, "stream": True}, path)
    answer = found.getresponse()
    assert answer.status == 200, answer.read()
    assert answer.readline().startswith(b"data: ")
    return answer


def begin_waiting(found):
    """Send a request that waits for a slot: its stream begins, but for the text. The status."""
    post(found, {**ENDLESS, "stream": True})
    return found.getresponse().status


def busy_slots(server):
    return sum(slot["is_processing"] for slot in server.ask("/slots").json())


def wait_busy(server, count):
    """Wait until so many slots have a request."""
    deadline = time.monotonic() + patience(SECONDS)
    while busy_slots(server) != count:
        assert server.process.poll() is None, server.log()
        assert time.monotonic() < deadline, server.log()
        time.sleep(0.01)


def test_a_client_that_leaves_a_stream_frees_its_slot(shared):
    with connection(shared) as found:
        begin_stream(found)
        assert busy_slots(shared) == 1
    shared.wait_idle()


def test_a_client_that_leaves_before_its_answer_frees_its_slots(shared):
    with connection(shared) as found:
        post(found, {**ENDLESS, "n": 2})
        wait_busy(shared, 2)
    shared.wait_idle()


def test_a_client_that_leaves_the_queue_is_forgotten(shared):
    with ExitStack() as stack:
        for _ in range(2):
            begin_stream(stack.enter_context(connection(shared)))
        with connection(shared) as waiting:
            begin_waiting(waiting)
            assert shared.ask("/v1/completions", ENDLESS).status == 503
        # The queue has room again: this one waits, and is answered when a stream is closed.
        waiting = stack.enter_context(connection(shared))
        while begin_waiting(waiting) == 503:
            waiting.close()
    shared.wait_idle()


def test_a_full_queue_is_told_with_a_time_to_come_again(shared):
    with ExitStack() as stack:
        for _ in range(2):
            begin_stream(stack.enter_context(connection(shared)))
        waiting = stack.enter_context(connection(shared))
        begin_waiting(waiting)
        answer = shared.ask("/v1/completions", {**ENDLESS, "n": 2})
        assert answer.status == 503
        assert int(answer.headers["retry-after"]) > 0
        assert answer.error["code"] == "queue_full"
        assert "wait for a slot already" in answer.error["message"]
    shared.wait_idle()


def test_more_texts_than_ever_fit_are_no_matter_of_waiting(shared):
    told = "the request wants 4 texts and this server takes 3 at once: ask for fewer"
    for fields in ({"n": 4}, {"prompt": ["a"] * 2, "n": 2}):
        answer = shared.ask("/v1/completions", {**ENDLESS, **fields})
        assert (answer.status, answer.error["message"]) == (400, told)
    many = {"prompt": ["a"] * 1_000_000, "n": 128}
    assert shared.ask("/v1/completions", many).status == 400


def test_a_killed_engine_ends_requests_cleanly_and_is_started_again(small):
    with api_server(small, *LONG) as server, connection(server) as streaming:
        stream = begin_stream(streaming)
        with connection(server) as whole:
            post(whole, ENDLESS)
            wait_busy(server, 2)
            os.kill(server.engine_pid(), signal.SIGKILL)
            last = stream.read().decode().strip().split("\n\n")[-1]
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["message"] == "the engine's process was killed by SIGKILL"
            answer = whole.getresponse()
            assert answer.status == 503
            assert int(answer.headers["Retry-After"]) > 0
            assert "SIGKILL" in json.loads(answer.read())["error"]["message"]
        health = server.ask("/health")
        if health.status != 200:  # it may be back already
            assert health.error["code"] in ("engine_lost", "engine_starting")
        server.wait_for("/health", 200)
        assert server.ask("/v1/completions", {**ENDLESS, "max_tokens": 2}).status == 200


def test_a_hung_engine_is_killed_and_started_again(small):
    with (
        api_server(small, *LONG, "--hang-timeout", HANG) as server,
        connection(server) as streaming,
    ):
        stream = begin_stream(streaming)
        pid = server.engine_pid()
        with watched([pid]) as (engine,):
            os.kill(pid, signal.SIGSTOP)
            last = stream.read().decode().strip().split("\n\n")[-1]
            error = json.loads(last.removeprefix("data: "))["error"]
            assert error["message"] == f"the engine has not answered for {HANG} s: it hangs"
            assert engine.wait_gone(SECONDS)
        server.wait_for("/health", 200)
        assert server.engine_pid() != pid
        assert server.ask("/v1/completions", {**ENDLESS, "max_tokens": 2}).status == 200


def test_a_killed_node_is_named(small):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        endpoints = [peer.endpoint for peer in peers]
        server = stack.enter_context(api_server(small, *LONG, "--rpc", ",".join(endpoints)))
        stream = begin_stream(stack.enter_context(connection(server)))
        peers[1].kill()
        last = stream.read().decode().strip().split("\n\n")[-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert f"node {endpoints[1]}" in error["message"]
        health = server.wait_for("/health", 503)
        assert endpoints[1] in server.log()
        assert health.error["type"] == "unavailable_error"
        # Without the node no engine can be made: the server stays, and says why.
        lost = server.ask("/v1/completions", ENDLESS)
        assert lost.status == 503
        # The engine's counters are gone with it; the server's stay.
        samples, name = scrape(f"{server.url}/metrics"), "ringline_api_engine_losses_total"
        lost_by = {dict(labels)["node"] for (found, labels) in samples if found == name}
        assert lost_by == {endpoints[1]}


def test_a_node_that_dies_while_nobody_asks_is_seen(small):
    with ExitStack() as stack:
        peers = open_peers(stack, "rr")
        endpoints = [peer.endpoint for peer in peers]
        options = (*LONG, "--rpc", ",".join(endpoints), "--hang-timeout", HANG)
        server = stack.enter_context(api_server(small, *options))
        peers[0].kill()
        # In turns it is lost and started in vain; the reason is told while it is lost.
        health = server.wait_for("/health", 503, says="the engine is lost")
        assert endpoints[0] in health.error["message"]


def test_a_node_that_comes_late_is_waited_for(small):
    with ExitStack() as stack:
        (first,) = open_peers(stack, "r")
        port = int(first.endpoint.rpartition(":")[2])
        first.stop()
        stack.enter_context(kept_port(port))
        listens = "ringline: api listens on "
        options = (*LONG, "--rpc", first.endpoint)
        server = stack.enter_context(api_server(small, *options, ready=listens))
        refused = server.ask("/v1/completions", ENDLESS)
        assert refused.status == 503
        stack.enter_context(ringline_node("--threads=1", port=port))
        server.wait_for("/health", 200)
        assert server.ask("/v1/completions", {**ENDLESS, "max_tokens": 2}).status == 200


def test_an_end_lets_requests_finish(small):
    with api_server(small, *LONG) as server, connection(server) as found:
        stream = begin_stream(found, {**ENDLESS, "max_tokens": 300})
        with watched([server.engine_pid()]) as (engine,):
            server.process.send_signal(signal.SIGTERM)
            body = b"data: " + stream.read().partition(b"data: ")[2]
            assert events(body)[-1]["choices"][0]["finish_reason"] == "length"
            assert server.process.wait(patience(SECONDS)) == 0
            assert engine.wait_gone(SECONDS)


def test_an_end_does_not_wait_for_ever(small):
    with api_server(small, *LONG, "--grace", 1) as server, connection(server) as found:
        begin_stream(found)
        assert server.stop() == 0


def test_a_second_signal_ends_it_at_once(small):
    with api_server(small, *LONG, "--grace", 600) as server, connection(server) as found:
        begin_stream(found)
        server.process.send_signal(signal.SIGINT)
        server.wait_log("api is ending")
        assert server.stop(signal.SIGINT) == 0


def test_an_end_while_the_model_is_loaded_leaves_nothing_behind(small):
    listens = "ringline: api listens on "
    with api_server(small, *LONG, ready=listens) as server:
        server.process.send_signal(signal.SIGTERM)
        with watched(children(server.process.pid)) as engines:
            assert server.process.wait(patience(SECONDS)) == 0
            assert all(engine.wait_gone(SECONDS) for engine in engines)


def test_an_engine_that_hangs_does_not_outlive_the_server(small):
    with api_server(small, *LONG, "--grace", 600) as server, connection(server) as found:
        begin_stream(found)
        with watched([server.engine_pid()]) as (engine,):
            os.kill(engine.pid, signal.SIGSTOP)
            server.process.send_signal(signal.SIGTERM)
            server.wait_log("api is ending")
            assert server.stop() == 0
            assert engine.wait_gone(SECONDS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        (("-m", "/nowhere/model.gguf"), "there is no model file"),
        (("--local-stages", 1, "--rpc", "h:1"), "use one of them"),
        (("--host", "192.0.2.1"), "the server cannot listen on 192.0.2.1"),
        (("--api-key", ""), "--api-key is empty"),
        (("--parallel", 1, "--groups", 2), "each group needs at least one"),
    ],
)
def test_what_cannot_be_served_is_said_with_exit_code_1(options, reason, small):
    command = [sys.executable, "-m", "ringline", "api", "-m", small, "--port", 0, *options]
    run = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=patience(SECONDS), check=False
    )
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("error: ")
    assert reason in run.stderr


def test_an_open_address_without_a_key_is_warned_of(small):
    with api_server(small, "--host", "0.0.0.0") as server:
        assert "WARNING: whoever reaches 0.0.0.0 can use this server" in server.log()
        assert READY in server.log()
