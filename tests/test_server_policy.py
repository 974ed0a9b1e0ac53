"""Whom a node may dial: what the flag says, and what the bind address implies without it."""

from __future__ import annotations

import pytest

from ringline.errors import CallerError, NetworkError
from ringline.net.endpoint import Endpoint
from ringline.server.policy import PeerPolicy, is_loopback


def allowed(policy: PeerPolicy, host: str) -> bool:
    return bool(policy.allowed(Endpoint(host, 50052)))


@pytest.mark.parametrize(
    ("bound", "yes", "no"),
    [
        ("127.0.0.1", ["127.0.0.1", "127.9.9.9", "::1"], ["10.0.0.1", "8.8.8.8", "0.0.0.0"]),
        ("::1", ["127.0.0.1", "::1"], ["192.168.0.1", "fe80::1"]),
        ("0.0.0.0", ["127.0.0.1", "10.0.0.1", "fd00::1"], ["8.8.8.8", "2001:db8::1"]),
        ("::", ["::1", "192.168.0.1"], ["8.8.8.8"]),
        ("192.168.0.7", ["192.168.0.8", "10.0.0.1", "100.64.0.1"], ["127.0.0.1", "8.8.8.8"]),
        ("8.8.4.4", ["8.8.8.8", "10.0.0.1"], []),
    ],
)
def test_the_bind_address_implies_whom(bound, yes, no):
    policy = PeerPolicy.parse((), bound)
    assert [host for host in yes if not allowed(policy, host)] == []
    assert [host for host in no if allowed(policy, host)] == []


def test_networks_and_addresses_are_taken_literally():
    policy = PeerPolicy.parse(("10.1.0.0/16", "192.168.7.7", "fd00::/8"), "127.0.0.1")
    assert all(allowed(policy, host) for host in ("10.1.2.3", "192.168.7.7", "fd12::1"))
    assert not any(allowed(policy, host) for host in ("10.2.0.1", "192.168.7.8", "127.0.0.1"))


def test_a_name_is_allowed_by_name_and_dialled_by_address():
    policy = PeerPolicy.parse(("LocalHost.",), "8.8.8.8")
    for spelling in ("localhost", "LOCALHOST"):
        addresses = policy.allowed(Endpoint(spelling, 5))
        assert addresses
        assert all(is_loopback(address.host) for address in addresses)
    assert not allowed(policy, "127.0.0.1")


def test_a_mapped_address_does_not_pass_by_another_name():
    policy = PeerPolicy.parse(("::/0",), "127.0.0.1")
    assert not allowed(policy, "::ffff:10.0.0.1")
    assert allowed(PeerPolicy.parse(("10.0.0.0/8",), "127.0.0.1"), "::ffff:10.0.0.1")
    mapped = PeerPolicy.parse(("::ffff:10.0.0.0/104", "::ffff:192.0.2.1"), "127.0.0.1")
    assert all(allowed(mapped, host) for host in ("10.1.2.3", "::ffff:10.1.2.3", "192.0.2.1"))
    assert not any(allowed(mapped, host) for host in ("11.0.0.1", "192.0.2.2", "::1"))


def test_a_name_is_resolved_anew_each_time_and_its_addresses_are_checked(monkeypatch):
    """What a resolver says is beyond our control: today this, tomorrow an address inside."""
    answers = [["192.0.2.1"], ["127.0.0.1"], ["127.0.0.1", "192.0.2.7"]]

    def resolve(host: str, port: int, **_: object) -> list[tuple[object, ...]]:
        return [(2, 1, 6, "", (address, port)) for address in answers.pop(0)]

    monkeypatch.setattr("socket.getaddrinfo", resolve)
    policy = PeerPolicy.parse(("192.0.2.0/24",), "127.0.0.1")
    peer = Endpoint("peer.example", 5)
    found = [[address.host for address in policy.allowed(peer)] for _ in range(3)]
    assert found == [["192.0.2.1"], [], ["192.0.2.7"]]


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "10.0.0.1:50052", "x/8"])
def test_what_is_no_network_is_refused_by_the_flag(entry):
    with pytest.raises(CallerError, match="--allow-peer"):
        PeerPolicy.parse((entry,), "127.0.0.1")


def test_a_name_that_nobody_knows_is_a_network_error():
    with pytest.raises(NetworkError, match="cannot be resolved"):
        PeerPolicy.parse((), "0.0.0.0").allowed(Endpoint("nowhere.invalid", 5))
