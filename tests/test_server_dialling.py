"""Whom a real node dials when a client asks: by network, by name, over IPv6, mapped or not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ringline.wire.extension import ProbePeer
from tests.peers.processes import Peer, ringline_node
from tests.rendezvous_sides import Side, probe
from tests.test_server_serve import has_ipv6

needs_ipv6 = pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6 loopback")


@pytest.fixture(scope="module")
def target() -> Iterator[Peer]:
    with ringline_node() as node:
        yield node


def reached(allow: str, target: Peer, host: str, session: int) -> bool:
    """Whether a node started with `--allow-peer allow` gets through to `host`."""
    port = target.endpoint.rpartition(":")[2]
    with ringline_node(f"--allow-peer={allow}") as node:
        side = Side(node)
        with side.client:
            reply = probe(side, f"{host}:{port}", session)
            if reply == ProbePeer.Reply(0, 0, 0):
                assert "may not dial that address" in node.log()
            return reply.result == 1


@pytest.mark.parametrize(
    ("allow", "host", "yes"),
    [
        ("127.0.0.0/8", "127.0.0.1", True),
        ("127.0.0.0/8", "localhost", True),
        ("127.0.0.0/8", "[::ffff:127.0.0.1]", True),
        ("::ffff:127.0.0.0/104", "127.0.0.1", True),
        ("localhost", "localhost", True),
        ("localhost.", "LocalHost", True),
        ("localhost", "127.0.0.1", False),
        ("192.0.2.0/24,other.example", "[::ffff:127.0.0.1]", False),
        ("::/0", "[::ffff:127.0.0.1]", False),
    ],
)
def test_what_the_operator_allows_is_dialled_and_nothing_else(allow, host, yes, target):
    side = Side(target)
    with side.client:
        assert reached(allow, target, host, side.session) == yes


@needs_ipv6
@pytest.mark.parametrize(("allow", "yes"), [("::1", True), ("fd00::/8,127.0.0.1", False)])
def test_ipv6_is_dialled_where_it_is_allowed(allow, yes):
    with ringline_node("--host=::1") as target:
        side = Side(target)
        with side.client:
            assert reached(allow, target, "[::1]", side.session) == yes
