"""Endpoints: `host:port`, `[v6]:port`, a bare port for loopback; and lists of them with commas."""

from __future__ import annotations

from dataclasses import dataclass

from ringline.errors import CallerError

__all__ = ["Endpoint", "parse_endpoints"]

DEFAULT_PORT = 50052


@dataclass(frozen=True, slots=True, order=True)
class Endpoint:
    """Where a node listens. `host` has no brackets, `port` is 0 to 65535."""

    host: str
    port: int

    def __str__(self) -> str:
        """The text that parse() reads; IPv6 addresses stand in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Endpoint:
        """Read `host:port`, `[v6]:port`, or `host` (port 50052, as ggml-rpc-server).

        Raises:
            CallerError: the text is no endpoint; says why.
        """
        text = text.strip()
        if text.startswith("["):
            host, bracket, rest = text[1:].partition("]")
            if not bracket or (rest and not rest.startswith(":")):
                raise CallerError(f"endpoint {text!r}: an IPv6 address is written [address]:port")
            port = rest[1:]
        elif text.count(":") > 1:
            raise CallerError(f"endpoint {text!r}: write an IPv6 address as [address]:port")
        else:
            host, _, port = text.partition(":")
        if not host:
            raise CallerError(f"endpoint {text!r} names no host: write host:port")
        return cls(host, _port(text, port) if port else DEFAULT_PORT)


def _port(text: str, port: str) -> int:
    if not port.isascii() or not port.isdigit() or not 0 < int(port) <= 65535:
        raise CallerError(f"endpoint {text!r}: {port!r} is no port from 1 to 65535")
    return int(port)


def parse_endpoints(text: str) -> list[Endpoint]:
    """Read a list of endpoints, separated by commas.

    Raises:
        CallerError: an entry is no endpoint, or stands there twice.
    """
    endpoints = [Endpoint.parse(entry) for entry in text.split(",") if entry.strip()]
    for endpoint in endpoints:
        if endpoints.count(endpoint) > 1:
            raise CallerError(f"endpoint {endpoint} is named twice; name each node once")
    return endpoints
