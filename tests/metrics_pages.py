"""Metrics pages of a real node and a real server, after enough has happened for every sample."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ringline.errors import RefusedError
from ringline.net.endpoint import Endpoint
from ringline.wire.messages import GraphRecompute
from tests.api_server import api_server
from tests.peers.processes import Peer, ringline_node
from tests.scraping import metrics_url, page, scrape, value
from tests.server_client import session_of, wait_for


@contextmanager
def live_pages(model: Path) -> Iterator[dict[str, str]]:
    """The pages: "node" of the first of two nodes, "api" of a server over them."""
    with ExitStack() as stack:
        nodes = [
            stack.enter_context(ringline_node("--device=CPU", "--threads=1", "--metrics-port=0"))
            for _ in range(2)
        ]
        endpoints = ",".join(node.endpoint for node in nodes)
        options = ("--rpc", endpoints, "-ts", "1,1", "--parallel", 2, "-c", 1024)
        server = stack.enter_context(api_server(model, *options))
        body = {"prompt": "Go", "max_tokens": 8, "temperature": 0}
        assert server.ask("/v1/completions", body).status == 200
        url = f"{server.url}/metrics"
        wait_for("the stages' counters", lambda: all(_computations(url)))
        # Last: the next session of an address that crashes often has to wait.
        _trouble(nodes[0])
        node_url = metrics_url(nodes[0])
        crashes = "ringline_node_crashes_total"
        wait_for("the crash", lambda: value(scrape(node_url), crashes, cause="SIGKILL"))
        yield {"node": page(node_url), "api": page(url)}


def _computations(url: str) -> list[float]:
    samples = scrape(url)
    return [n for (name, _), n in samples.items() if name == "ringline_stage_computations_total"]


def _trouble(node: Peer) -> None:
    """A refusal, a stranger and a crash."""
    with session_of(node) as (client, pid):
        client.post(GraphRecompute(0))
        with pytest.raises(RefusedError):
            client.ping()
        os.kill(pid, signal.SIGKILL)
    endpoint = Endpoint.parse(node.endpoint)
    with socket.create_connection((endpoint.host, endpoint.port)) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        stranger.recv(1)
