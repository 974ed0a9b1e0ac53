"""The metrics of a node: they agree with what was done, and cost nobody anything."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

import make_model
from make_model import ModelSpec
from ringline import Ring
from ringline.engine.engine import Engine
from ringline.errors import RefusedError
from ringline.net.endpoint import Endpoint
from ringline.wire.messages import GraphRecompute
from tests.peers.processes import PeerFailed, ringline_node
from tests.ring_certificates import Authority, flags
from tests.scraping import metrics_url, scrape, value
from tests.server_client import Client, addition, children, floats, session_of, wait_for

SPEC = ModelSpec(layers=4, type="q8_0")
SECONDS = 60.0


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_model.make_model(tmp_path_factory.mktemp("small") / "small.gguf", SPEC)


@contextlib.contextmanager
def metered_node(*arguments):
    with ringline_node("--device=CPU", "--threads=1", "--metrics-port=0", *arguments) as node:
        yield node, metrics_url(node)


@pytest.fixture
def node():
    with metered_node() as made:
        yield made


def samples_when(url, condition):
    """The samples of a page as soon as they are so."""
    found = []

    def ready():
        found[:] = [scrape(url)]
        return condition(found[0])

    wait_for("the metrics", ready)
    return found[0]


def test_the_sums_of_a_decode_agree_on_both_ends(small):
    with ExitStack() as stack:
        nodes = [stack.enter_context(metered_node()) for _ in range(2)]
        with Ring([node.endpoint for node, _ in nodes]) as ring:
            placed = ring.place(small, n_threads=1, repack=False)
            with Engine(ring, placed, parallel=1, n_ctx=256) as engine:
                engine.submit([5, 6, 7, 8], n_predict=10).result(SECONDS)
                assert [value(scrape(url), "ringline_node_sessions") for _, url in nodes] == [1, 1]
        first, second = [
            samples_when(url, lambda s: value(s, "ringline_node_sessions") == 0) for _, url in nodes
        ]
    for samples in (first, second):
        labels = {"device": "0", "name": "CPU"}
        assert value(samples, "ringline_node_device_computations_total", **labels) >= 10
        assert value(samples, "ringline_node_device_compute_seconds_total", **labels) > 0
        assert value(samples, "ringline_node_device_lock_wait_seconds_total", **labels) > 0
        assert value(samples, "ringline_node_sessions_started_total") == 1
        assert value(samples, "ringline_node_client_bytes_total", direction="received") > 1000
        assert value(samples, "ringline_node_client_bytes_total", direction="sent") > 0
    size, peer = 4 * SPEC.embd * (4 + 10 - 1), nodes[1][0].endpoint
    name = "ringline_node_peer_bytes_total"
    assert value(first, name, peer=peer, direction="sent") == size
    assert value(second, name, peer="127.0.0.1", direction="received") == size
    assert value(second, "ringline_node_data_wait_seconds_total") > 0
    assert value(first, "ringline_node_data_wait_seconds_total") == 0


def test_what_a_session_counted_outlives_its_crash_which_is_counted_by_signal(node):
    peer, url = node
    with session_of(peer) as (client, pid):
        tensors = addition(client.alloc(1024))
        client.write(tensors[0], floats(*range(8)))
        client.compute([3], tensors)
        client.ping()
        os.kill(pid, signal.SIGKILL)
        samples = samples_when(
            url, lambda s: value(s, "ringline_node_crashes_total", cause="SIGKILL")
        )
    assert value(samples, "ringline_node_crashes_total", cause="SIGKILL") == 1
    labels = {"device": "0", "name": "CPU"}
    assert value(samples, "ringline_node_device_computations_total", **labels) == 1


def test_a_refusal_is_counted_by_its_rule(node):
    peer, url = node
    with Client.extended(peer.endpoint) as client:
        client.post(GraphRecompute(0))
        with pytest.raises(RefusedError, match="there is no stored graph"):
            client.ping()
        samples = scrape(url)
    refusals = {key: n for key, n in samples.items() if key[0] == "ringline_node_refusals_total"}
    assert list(refusals.values()) == [1]
    ((_, ((label, rule),)),) = refusals
    assert label == "rule"
    assert rule == rule.lower()
    assert len(rule) < 40


def test_who_is_no_client_is_counted_with_the_reason(node):
    peer, url = node
    endpoint = Endpoint.parse(peer.endpoint)
    with socket.create_connection((endpoint.host, endpoint.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
    samples_when(
        url, lambda s: value(s, "ringline_node_handshake_failures_total", reason="not_a_client")
    )


def test_slow_scrapers_hold_up_nobody(node, small):
    peer, url = node
    endpoint = Endpoint.parse(url.removeprefix("http://").removesuffix("/metrics"))
    with ExitStack() as stack:
        for _ in range(5):
            slow = stack.enter_context(socket.create_connection((endpoint.host, endpoint.port)))
            slow.sendall(b"GET /met")
        assert value(scrape(url), "ringline_node_sessions_limit") == 64
        with Client.extended(peer.endpoint) as client:
            client.ping()


def test_scraping_while_a_text_is_decoded_changes_no_token(node, small):
    peer, url = node
    with Ring([peer.endpoint]) as ring:
        placed = ring.place(small, n_threads=1, repack=False)
        with Engine(ring, placed, parallel=1, n_ctx=512) as engine:
            alone = engine.submit([5, 6, 7], n_predict=150).result(SECONDS)
            job, seen = engine.submit([5, 6, 7], n_predict=150), []
            for _ in job:
                if len(seen) < 20:
                    seen.append(
                        value(
                            scrape(url),
                            "ringline_node_device_computations_total",
                            device="0",
                            name="CPU",
                        )
                    )
            assert job.result(SECONDS).ids == alone.ids
    assert seen == sorted(seen)
    assert seen[0] > 0


def exporter_of(peer):
    """The pid of the process that serves the metrics: it alone listens where scrapers connect."""
    port = Endpoint.parse(metrics_url(peer).split("/")[2]).port
    with socket.create_connection(("127.0.0.1", port)):
        pass
    listening, found = {_inode_of(port)}, []

    def alone():
        found[:] = [pid for pid in children(peer.process.pid) if listening & _sockets_of(pid)]
        return len(found) == 1

    # A session process has all of the gatekeeper's sockets in the moment that it is forked.
    wait_for("one process that listens", alone)
    return found[0]


def _inode_of(port):
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[1].endswith(f":{port:04X}") and fields[3] == "0A":
            return f"socket:[{fields[9]}]"
    raise AssertionError(f"nobody listens on port {port}")


def _sockets_of(pid):
    found = set()
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # closed while we looked
            found.add(os.readlink(entry))
    return found


def test_the_process_that_serves_the_metrics_is_replaced_however_soon_it_ended(node):
    """After a pause that doubles; sessions notice nothing."""
    peer, url = node
    with Client.extended(peer.endpoint) as client:
        for seconds in (1, 2):
            os.kill(exporter_of(peer), signal.SIGKILL)
            line = f"ended with code -9, the next in {seconds} s"
            wait_for("the log", lambda line=line: line in peer.log())
            client.ping()
            assert value(scrape(url), "ringline_node_sessions") == 1  # waits in the backlog


def test_the_exporter_ends_with_the_gatekeeper(node):
    peer, _ = node
    pid = exporter_of(peer)
    peer.kill()

    def gone():
        try:
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except (FileNotFoundError, ProcessLookupError):
            return True

    wait_for("the exporter's end", gone)


def test_a_node_without_the_flag_serves_none_and_has_no_process_for_it():
    with ringline_node("--device=CPU", "--threads=1") as peer:
        assert "  metrics " not in peer.log()
        wait_for("the idle sessions", lambda: len(children(peer.process.pid)) == 2)
        time.sleep(0.1)
        assert len(children(peer.process.pid)) == 2


def test_a_port_that_is_taken_ends_the_start_with_a_sentence():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(PeerFailed, match=f"cannot listen on 127.0.0.1:{port}"),
            ringline_node("--device=CPU", f"--metrics-port={port}"),
        ):
            pass


def test_who_fails_at_the_doorman_is_counted_too_and_who_gets_in_is_served(tmp_path):
    files = Authority.make(tmp_path / "ca").machine("node")
    with metered_node(*flags(files)) as (peer, url):
        where = Endpoint.parse(peer.endpoint)
        with socket.create_connection((where.host, where.port)) as plain:
            plain.sendall(bytes([14]))  # HELLO
            assert plain.recv(1) == b"\x15"  # an alert
        with Client.extended(peer.endpoint, tls=files) as client:
            client.ping()
            failures, sessions = "ringline_node_handshake_failures_total", "ringline_node_sessions"
            # The session is counted when it has been handed over, and so after its first answer.
            samples_when(
                url, lambda s: value(s, failures, reason="plain_client") and value(s, sessions) == 1
            )
