"""What counts as one address, where a limit or a pause is for each."""

from __future__ import annotations

import ipaddress

__all__ = ["origin_of"]


def origin_of(host: str) -> str:
    """The address itself; of IPv6 the /64 around it, for whoever has one address has them all."""
    address = ipaddress.ip_address(host.partition("%")[0])
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped:
        return str(address.ipv4_mapped)
    return str(ipaddress.ip_network((address, 64), strict=False))
