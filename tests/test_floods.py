"""A thousand connections that say nothing: a client at work, and one that comes, notice nothing."""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from ringline.wire.commands import Command
from ringline.wire.frames import request_frame
from ringline.wire.messages import Hello
from tests.peers.process_tree import tree_memory
from tests.peers.processes import patience
from tests.rings import context_for, greedy, open_peers, placed, prompts_of
from tests.server_client import Client

pytestmark = pytest.mark.model

SILENT = 1000
#: what the whole node, its sessions too, may grow by while they are there; bytes.
SLACK = 8 << 20


@pytest.fixture
def many_descriptors() -> Iterator[None]:
    """Room for a thousand sockets in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < SILENT + 256:
        pytest.skip(f"this process may have {hard} descriptors only")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, SILENT + 256), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def connect_silently(stack: ExitStack, endpoint: str, words: bytes) -> None:
    host, _, port = endpoint.rpartition(":")
    for _ in range(SILENT):
        sock = stack.enter_context(socket.create_connection((host, int(port)), patience(60)))
        sock.sendall(words)


@pytest.mark.parametrize(
    "words", [b"", request_frame(Command.HELLO, Hello().pack())], ids=["nothing", "HELLO alone"]
)
def test_a_thousand_silent_connections_disturb_nobody(
    words, model_path, local_ids, many_descriptors
):
    memory: list[int] = []
    with ExitStack() as stack:
        nodes = open_peers(stack, "rr")
        model = stack.enter_context(placed(model_path, [node.endpoint for node in nodes]))
        context = stack.enter_context(context_for("decode", model))

        def flood(step: int) -> None:
            if step in (5, 30):
                memory.append(tree_memory(nodes[0].process.pid))
            if step == 5:
                connect_silently(stack, nodes[0].endpoint, words)
            if step == 15:
                stack.enter_context(Client.extended(nodes[0].endpoint)).ping()

        prompt = prompts_of("decode", model)["prompt 0"]
        ids = greedy(context, prompt, 32, before_step=flood)
        assert ids == local_ids("decode")["prompt 0"]
        before, after = memory
        assert after - before < SLACK, memory
        log = nodes[0].log_path.read_text()
        assert len(log) < 64 << 10, "a flood must not flood the log"
        assert "says nothing and" in log
