"""Whom a node may dial: what the flag says, and what the bind address implies without it."""

from __future__ import annotations

import pytest

from ringline.errors import CallerError, NetworkError
from ringline.net.endpoint import Endpoint
from ringline.server.policy import PeerPolicy, is_loopback


def allowed(policy: PeerPolicy, host: str) -> bool:
    return policy.choose(Endpoint(host, 50052)) is not None


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
    policy = PeerPolicy.parse(("LocalHost",), "8.8.8.8")
    address = policy.choose(Endpoint("localhost", 5))
    assert is_loopback(address.host)
    assert not allowed(policy, "127.0.0.1")


def test_a_mapped_address_does_not_pass_by_another_name():
    policy = PeerPolicy.parse(("::/0",), "127.0.0.1")
    assert not allowed(policy, "::ffff:10.0.0.1")
    assert allowed(PeerPolicy.parse(("10.0.0.0/8",), "127.0.0.1"), "::ffff:10.0.0.1")


@pytest.mark.parametrize("entry", ["10.0.0.0/99", "10.0.0.1:50052", "x/8"])
def test_what_is_no_network_is_refused_by_the_flag(entry):
    with pytest.raises(CallerError, match="--allow-peer"):
        PeerPolicy.parse((entry,), "127.0.0.1")


def test_a_name_that_nobody_knows_is_a_network_error():
    with pytest.raises(NetworkError, match="cannot be resolved"):
        PeerPolicy.parse((), "0.0.0.0").choose(Endpoint("nowhere.invalid", 5))
