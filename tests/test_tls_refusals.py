"""Who has no right to a TLS node is refused, and both ends say which reason it is."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from ringline.client.counters import Traffic
from ringline.client.greeting import greet
from ringline.errors import CallerError, TlsError
from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN, TlsFiles
from tests.commands import ringline
from tests.peers.processes import Peer, ringline_node, stock_server
from tests.ring_certificates import Authority, flags
from tests.server_client import Client, wait_for


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority.make(tmp_path_factory.mktemp("theirs"))


@pytest.fixture(scope="module")
def files(authority: Authority) -> TlsFiles:
    return authority.machine("node")


@pytest.fixture(scope="module")
def node(files: TlsFiles) -> Iterator[Peer]:
    with ringline_node("--threads=1", *flags(files)) as node:
        yield node
        with Client.extended(node.endpoint, tls=files) as client:
            client.ping()  # after all of them


def refusal(endpoint: str, files: TlsFiles) -> str:
    with pytest.raises(TlsError) as failure:
        greet(Endpoint.parse(endpoint), Traffic(), files)
    return str(failure.value)


def logged(node: Peer, sentence: str) -> None:
    wait_for("the reason in the node's log", lambda: sentence in node.log())


def test_a_client_of_another_ca_is_refused_by_the_node(node, stranger, authority):
    files = stranger.machine("intruder", trusts=authority)
    sentence = refusal(node.endpoint, files)
    assert sentence == (
        f"node {node.endpoint}: it refuses our certificate: it is not of the CA that it trusts"
    )
    logged(node, "refused: its certificate is not of the CA that we trust (--tls-ca)")


def test_a_node_of_another_ca_is_refused_by_the_client(node, stranger):
    sentence = refusal(node.endpoint, stranger.machine("lost"))
    assert "its certificate is not of the CA that we trust (--tls-ca)" in sentence
    logged(node, "refused: it refuses our certificate: it is not of the CA that it trusts")


def test_an_expired_client_is_refused_by_the_node(node, authority):
    sentence = refusal(node.endpoint, authority.machine("late", days=-1))
    assert "it refuses our certificate: it has expired, or one of the two clocks" in sentence
    logged(node, "refused: its certificate has expired, or one of the two clocks is wrong")


def test_an_expired_node_does_not_start(authority):
    done = ringline("serve", "--port=0", *flags(authority.machine("old", days=-1)))
    assert done.code == 1
    assert "cannot be used with the CA" in done.err
    assert "its certificate has expired" in done.err


def test_a_node_whose_certificate_expires_while_it_runs_is_refused_by_the_client(files, authority):
    prelude = "from ringline.net.tls import TlsFiles as files\n"
    prelude += "files.check = lambda _: 'Jan  1 00:00:00 2026 GMT'"
    late = authority.machine("late-node", days=-1)
    with ringline_node(*flags(late), prelude=prelude) as node:
        assert "its certificate has expired" in refusal(node.endpoint, files)
        logged(node, "refused: it refuses our certificate: it has expired")


def test_a_client_without_a_certificate_is_refused(node, authority, monkeypatch):
    def without(self: TlsFiles) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self.ca)
        return context

    files = authority.machine("nobody")
    monkeypatch.setattr(TlsFiles, "client_context", without)
    assert "it asks for a certificate and got none" in refusal(node.endpoint, files)
    logged(node, "refused: it shows no certificate")


def test_a_plain_client_is_told_that_the_port_speaks_tls(node):
    sentence = refusal(node.endpoint, PLAIN)
    assert "it speaks TLS: give --tls-cert, --tls-key and --tls-ca" in sentence
    logged(node, "refused: it does not speak TLS, and this port does")


def test_a_tls_client_is_told_that_a_node_is_plain(files):
    with ringline_node("--threads=1") as plain:
        sentence = refusal(plain.endpoint, files)
        assert "it does not speak TLS: start it with --tls-cert" in sentence
        logged(plain, "it speaks TLS, and this port does not")


def test_a_tls_client_is_told_that_a_stock_server_is_plain(files):
    with stock_server(1) as (server,):
        assert "it does not speak TLS: start it with" in refusal(server.endpoint, files)


def test_a_certificate_for_another_name_is_refused(files, authority):
    elsewhere = authority.machine("elsewhere", hosts=["192.0.2.7"])
    with ringline_node(*flags(elsewhere)) as node:
        sentence = refusal(node.endpoint, files)
        assert "its certificate is for another name" in sentence
        assert "127.0.0.1" in sentence
        logged(node, "refused: it refuses our certificate")


def test_the_name_that_was_dialled_is_compared(authority):
    by_name = authority.machine("by-name", hosts=["localhost"])
    with ringline_node(*flags(by_name)) as node:
        port = node.endpoint.rpartition(":")[2]
        with Client.extended(f"localhost:{port}", tls=by_name) as client:
            client.ping()
        assert "another name" in refusal(node.endpoint, by_name)


def test_tls_1_2_is_refused(node, files):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.ca)
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    host, _, port = node.endpoint.rpartition(":")
    with (
        socket.create_connection((host, int(port)), 10) as sock,
        pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"),
    ):
        context.wrap_socket(sock, server_hostname=host)
    logged(node, "refused: it does not speak TLS 1.3")


@pytest.mark.parametrize("kept", [("cert",), ("cert", "key"), ("ca",), ("key", "ca")])
def test_one_file_alone_is_an_error_that_names_the_others(kept, files, monkeypatch):
    some = [flag for flag in flags(files) if flag[6:].split("=")[0] in kept]
    done = ringline("devices", "--rpc=127.0.0.1:1", *some)
    assert done.code == 1
    for name in ("cert", "key", "ca"):
        assert (f"--tls-{name} (RINGLINE_TLS_{name.upper()})" in done.error) == (name not in kept)
    assert f"{'is' if len(kept) == 2 else 'are'} missing" in done.error


def test_files_that_cannot_be_used_are_told(files, authority, tmp_path: Path):
    other = authority.machine("other")
    nothing = tmp_path / "nothing.pem"
    nothing.write_text("nothing")
    for spoilt, sentence in (
        (TlsFiles(files.cert, "/nowhere.pem", files.ca), "the TLS key /nowhere.pem cannot be read"),
        (TlsFiles(files.cert, other.key, files.ca), "have to be PEM files that belong together"),
        (TlsFiles(str(nothing), files.key, files.ca), "have to be PEM files that belong together"),
        (TlsFiles(files.cert, files.key, str(nothing)), "cannot be used"),
    ):
        with pytest.raises(CallerError, match=sentence):
            spoilt.check()


def test_a_node_reminds_of_its_last_days_and_of_a_key_that_others_can_read(authority):
    files = authority.machine("careless", days=3)
    Path(files.key).chmod(0o644)
    with ringline_node(*flags(files)) as node:
        logged(node, f"the certificate {files.cert} expires in 3 days")
        logged(node, f"others on this machine can read the key {files.key}: chmod 600")


def test_a_certificate_of_another_ca_is_noticed_at_the_start_of_a_node(stranger, authority):
    with pytest.raises(CallerError, match="is not of the CA that we trust"):
        stranger.machine("alien", trusts=authority).check()
