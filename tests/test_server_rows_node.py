"""Rows by index between a client and a node's process: shared in the session, gone with it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ringline.errors import RefusedError
from ringline.ggml.rows import dequantise_rows, row_size
from ringline.wire.commands import MOST_ROW_PART
from ringline.wire.extension import Role
from ringline.wire.rows import CheckRows, RowTable, SetRows
from tests.peers.processes import Peer, ringline_node
from tests.server_client import Client, wait_for
from tests.test_server_rows import DATA, Q4_1, TABLE, WIDTH, digest, expected

#: the node of this version speaks a lower level as yet.
LEVEL_5 = "import ringline.wire.commands as c; c.EXTENSION_LEVEL = 5"


@pytest.fixture(scope="module")
def node() -> Iterator[Peer]:
    with ringline_node("--device=CPU", "--threads=1", prelude=LEVEL_5) as node:
        yield node


@pytest.fixture
def endpoint(node: Peer) -> str:
    return node.endpoint


def attach(endpoint: str, client: Client) -> Client:
    known = client.greeting
    return Client.extended(
        endpoint, Role.ATTACH, session=known.session, secret=known.secret, level=5
    )


def test_two_connections_of_a_session_share_a_table(endpoint):
    with Client.extended(endpoint, level=5) as client, attach(endpoint, client) as other:
        tensor = client.alloc(4096).vector(1, 2 * WIDTH)
        client.post(TABLE, DATA[:200])
        client.ping()
        other.post(replace(TABLE, offset=200), DATA[200:])
        other.ping()
        client.post(SetRows(tensor.pack(), 5, (3, 1)))
        assert client.read(tensor, 8 * WIDTH) == expected(3, 1)
        assert other.call(CheckRows(5, (3, 1))) == digest(expected(3, 1))
    with Client.extended(endpoint, level=5) as stranger, pytest.raises(RefusedError):
        stranger.call(CheckRows(5, (3, 1)))


def test_a_refused_part_is_told_by_the_next_reply_and_the_table_can_be_begun_again(endpoint):
    with Client.extended(endpoint, level=5) as client:
        client.post(TABLE, DATA[:40])
        client.post(replace(TABLE, offset=80), DATA[80:])
        with pytest.raises(RefusedError, match="ROW_TABLE: a part at 80 of table 5 came where 40"):
            client.call(CheckRows(5, (0,)))
        client.post(TABLE, DATA)
        assert client.call(CheckRows(5, (0,))) == digest(expected(0))


def test_a_level_4_connection_and_a_peer_may_not_send_rows(endpoint):
    with Client.extended(endpoint, level=5) as client:
        session = client.greeting.session
        with (
            Client.extended(endpoint, level=4) as older,
            pytest.raises(RefusedError, match="a command of extension level 5"),
        ):
            older.call(CheckRows(5, (0,)))
        with (
            Client.extended(endpoint, Role.PEER, session=session, level=5) as peer,
            pytest.raises(RefusedError, match="role peer may not send it"),
        ):
            peer.call(CheckRows(5, (0,)))
        client.ping()


def test_a_large_table_comes_in_whole_parts_and_its_memory_goes_with_the_session(node):
    width, n_rows = 1 << 16, 1024
    step = row_size(Q4_1, width)
    row = np.random.default_rng(2).bytes(step)
    data = row * n_rows  # 40 MiB
    table = RowTable(1, Q4_1, width, n_rows, 0)
    with Client.extended(node.endpoint, level=5) as client:
        pid = session_pid(node, client)
        before = resident(pid)
        for start in range(0, len(data), MOST_ROW_PART):
            client.post(replace(table, offset=start), data[start : start + MOST_ROW_PART])
        rows_ = dequantise_rows(Q4_1, memoryview(row), step, [0])
        assert client.call(CheckRows(1, (n_rows - 1,))) == digest(rows_)
        held = resident(pid)
        assert held - before >= len(data)
        client.post(replace(TABLE, table=1), DATA)  # a small table in its place
        client.ping()
        assert held - resident(pid) >= len(data) // 2
    wait_for("the session to end", lambda: not Path(f"/proc/{pid}").exists())


def session_pid(node: Peer, client: Client) -> int:
    """The process that serves a client, as the node's log names it."""
    begins = f"session {client.greeting.session:08x} begins"
    wait_for("the session in the log", lambda: begins in node.log())
    (line,) = [line for line in node.log().splitlines() if begins in line]
    return int(line.rpartition("pid ")[2])


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
