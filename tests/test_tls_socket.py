"""TLS on a socket that never waits: what goes in comes out, once, in order, in both directions."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from ringline.errors import NetworkError
from ringline.net.stream import Closed
from ringline.net.tls import TlsFiles, TlsSocket
from tests.ring_certificates import Authority
from tests.tls_pairs import receive, send_all, stream, tls_pair

Pair = tuple[TlsSocket, TlsSocket]
#: not a multiple of any buffer's size.
BULK = hashlib.shake_256(b"bulk").digest(5_000_011)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return Authority.make(tmp_path_factory.mktemp("ring")).machine("both")


@pytest.fixture
def pair(files: TlsFiles) -> Iterator[Pair]:
    client, server = tls_pair(files)
    with closing(client), closing(server):
        yield client, server


def test_each_end_knows_the_others_name(pair):
    assert [end.peer_name() for end in pair] == ["both", "both"]


def test_bulk_goes_both_ways_at_once(pair):
    got: dict[int, bytes] = {}

    def read(index: int) -> None:
        got[index] = receive(pair[index], len(BULK))

    threads = [threading.Thread(target=read, args=(index,)) for index in (0, 1)]
    threads += [threading.Thread(target=send_all, args=(end, BULK)) for end in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == {0: BULK, 1: BULK}


def test_what_is_not_taken_is_offered_again_and_comes_once(pair):
    client, server = pair
    sent, refused, view = 0, 0, memoryview(BULK)
    while refused < 2:  # the kernel may have made room meanwhile: until it is refused again
        try:
            sent += client.sendmsg([view[sent:]])
            refused = 0
        except BlockingIOError:
            refused += 1
    assert 0 < sent < len(BULK)
    reader = threading.Thread(target=lambda: got.append(receive(server, len(BULK))))
    got: list[bytes] = []
    reader.start()
    send_all(client, bytes(view[sent:]))
    reader.join()
    assert got == [BULK]


def test_many_small_parts_arrive_in_order(pair):
    parts = [bytes([index % 256]) * (index % 7) for index in range(3000)]
    one, other = map(stream, pair)
    thread = threading.Thread(target=one.send, args=(parts,))
    thread.start()
    whole = bytearray(sum(map(len, parts)))
    other.read_into(memoryview(whole))
    thread.join()
    assert whole == b"".join(parts)


def test_a_stream_knows_what_tls_has_received_for_it(pair):
    one, other = map(stream, pair)
    assert not other.readable(0)
    one.send([b"a" * 1000])
    assert other.readable(10)
    target = memoryview(bytearray(999))
    other.read_into(target)
    assert other.readable(0), "a byte is left, and poll() does not know of it"
    other.read_into(target[:1])
    assert not other.readable(0)


def test_one_direction_ends_and_the_other_goes_on(pair):
    client, server = pair
    send_all(client, b"the last words")
    client.end_writing()
    assert receive(server, 1000) == b"the last words"
    send_all(server, BULK[:100_000])
    assert receive(client, 100_000) == BULK[:100_000]


def test_an_end_that_closes_is_an_end_of_file(pair):
    one, other = map(stream, pair)
    one.close()
    with pytest.raises(Closed):
        other.read(1)
    assert other.hung_up()


def test_bytes_that_are_no_tls_end_the_connection(pair):
    client, server = pair
    client._socket.sendall(b"these are no records")
    with pytest.raises(NetworkError, match="TLS"):
        stream(server).read(1)
