"""Whom this node may dial when a client asks it to send a tensor to another node.

A client makes the node open connections, so its operator decides where to. `--allow-peer` names
networks (10.0.0.0/8), addresses and host names. Without it the bind address decides:

    loopback                      loopback
    0.0.0.0, ::                   loopback and private networks
    an address of a private net   private networks
    any other address             any address

A name is resolved each time it is dialled, and once: the addresses that were checked are those that
are dialled. A name that stands in the list is trusted with whatever address it has then; any other
is only as good as its addresses. ::ffff:10.0.0.1 is 10.0.0.1 on both sides of the comparison.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

from ringline.errors import CallerError, NetworkError
from ringline.net.endpoint import Endpoint

__all__ = ["PeerPolicy", "is_loopback"]

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def _networks(text: str) -> tuple[Network, ...]:
    return tuple(ipaddress.ip_network(entry) for entry in text.split())


_LOOPBACK = _networks("127.0.0.0/8 ::1/128")
#: private, shared (100.64.0.0/10, used by overlay networks) and link-local.
_PRIVATE = _networks("10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 100.64.0.0/10 169.254.0.0/16")
_PRIVATE_V6 = _networks("fc00::/7 fe80::/10")
_ANY = _networks("0.0.0.0/0 ::/0")


@dataclass(frozen=True, slots=True)
class PeerPolicy:
    """Networks and names that may be dialled."""

    networks: tuple[Network, ...]
    names: frozenset[str] = frozenset()

    @classmethod
    def parse(cls, entries: Sequence[str], bound: str) -> PeerPolicy:
        """Read `--allow-peer`.

        Args:
            entries: networks, addresses and host names; none: what `bound` implies.
            bound: the address that the node listens on.

        Raises:
            CallerError: an entry looks like a network and is none.
        """
        if not entries:
            return cls(_implied(ipaddress.ip_address(bound.partition("%")[0])))
        networks, names = [], []
        for entry in entries:
            try:
                networks.append(_plain_network(ipaddress.ip_network(entry, strict=False)))
            except ValueError:
                if "/" in entry or ":" in entry:
                    raise CallerError(
                        f"--allow-peer {entry!r} is neither a network (10.0.0.0/8), an address nor "
                        "a host name; ports do not belong there"
                    ) from None
                names.append(_plain_name(entry))
        return cls(tuple(networks), frozenset(names))

    def allowed(self, endpoint: Endpoint) -> list[Endpoint]:
        """The addresses of an endpoint that may be dialled, in the resolver's order; maybe none.

        Raises:
            NetworkError: the name cannot be resolved.
        """
        addresses = resolve(endpoint)
        if _plain_name(endpoint.host) in self.names:
            return addresses
        return [address for address in addresses if self._allows(address.host)]

    def _allows(self, host: str) -> bool:
        address = _plain(ipaddress.ip_address(host.partition("%")[0]))
        return any(address in network for network in self.networks)


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine alone."""
    return ipaddress.ip_address(host.partition("%")[0]).is_loopback


def resolve(endpoint: Endpoint) -> list[Endpoint]:
    """The numeric addresses of an endpoint, at least one.

    Raises:
        NetworkError: the name cannot be resolved.
    """
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        raise NetworkError(
            f"the host name cannot be resolved ({error.strerror})", peer=str(endpoint)
        ) from None
    return [Endpoint(str(address[0]), endpoint.port) for _, _, _, _, address in found]


def _implied(bound: Address) -> tuple[Network, ...]:
    private = _PRIVATE + _PRIVATE_V6
    if bound.is_unspecified:
        return _LOOPBACK + private
    if bound.is_loopback:
        return _LOOPBACK
    return private if any(bound in network for network in private) else _ANY


def _plain_name(name: str) -> str:
    """Names are compared without regard to case and to the dot of the root."""
    return name.lower().removesuffix(".")


def _plain_network(network: Network) -> Network:
    """::ffff:10.0.0.0/104 is 10.0.0.0/8; addresses are compared in their plain form."""
    if isinstance(network, ipaddress.IPv6Network) and network.prefixlen >= 96:
        address = _plain(network.network_address)
        if isinstance(address, ipaddress.IPv4Address):
            return ipaddress.IPv4Network((address, network.prefixlen - 96))
    return network


def _plain(address: Address) -> Address:
    """::ffff:10.0.0.1 is 10.0.0.1: a mapped address must not pass by another name."""
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if isinstance(mapped, ipaddress.IPv4Address) else address
