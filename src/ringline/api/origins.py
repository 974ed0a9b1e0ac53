"""Pages of other origins: which may use the server, and how a browser is told so (CORS).

A browser sends requests of any page that its user looks at, also to servers that only his machine
can reach. It says whose they are in `Origin`, and lets a page read an answer only if the answer
allows that. Where there is no key, two more things are looked at here. What a foreign page posts is
refused before it costs anything, since it would be computed although nobody can read it. And on
loopback the name in `Host` has to be one of this machine: a name of the page's own that was made to
point here would be its own origin (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import socket
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ringline.api.errors import ApiError
from ringline.errors import CallerError

__all__ = ["ANY", "LOCAL", "OriginCheck", "Origins"]

#: each page; each page of this machine, whatever its port.
ANY: Final = "*"
LOCAL: Final = "localhost"
_METHODS: Final = "GET, POST, OPTIONS"
#: `*` does not stand for Authorization.
_HEADERS: Final = "Authorization, Content-Type, X-Api-Key, *"
#: what a page may read beside the body.
_SHOWN: Final = "Retry-After"
_SECONDS: Final = "600"


@dataclass(frozen=True, slots=True)
class Origins:
    """Whose pages may use the server.

    Attributes:
        allowed: origins such as `https://chat.example`, or ANY, or LOCAL; none: only its own page.
    """

    allowed: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Origins:
        """Read a list, separated by commas.

        Raises:
            CallerError: an entry is no origin.
        """
        found = tuple(
            entry.strip().lower().rstrip("/") for entry in text.split(",") if entry.strip()
        )
        for entry in found:
            parts = urlsplit(entry)
            whole = parts.scheme and parts.netloc and not (parts.path or parts.query)
            if entry not in (ANY, LOCAL) and not whole:
                raise CallerError(
                    f"--cors-origins has {entry!r}: an origin is like https://chat.example or "
                    "http://10.0.0.5:3000, without a path; * is all of them"
                )
        return cls(found)

    def allow(self, origin: str) -> bool:
        """Whether pages of an origin may read answers."""
        if ANY in self.allowed or origin in self.allowed:
            return True
        return LOCAL in self.allowed and _is_local(_host_of(origin))

    def trust(self, host: str) -> bool:
        """Whether a name, as `Host` has it, is this machine's, or that of an allowed origin.

        Nobody can have an address, or a name without a dot, point elsewhere.
        """
        name = _host_of(f"//{host}").rstrip(".")
        own = "." not in name or name == socket.gethostname().lower()
        trusted = own or _is_local(name) or _is_address(name)
        return trusted or ANY in self.allowed or name in map(_host_of, self.allowed)


class OriginCheck:
    """A layer round an app. It stands outside of what asks for keys: a preflight brings none."""

    def __init__(self, app: ASGIApp, origins: Origins, *, keyed: bool, loopback: bool) -> None:
        """Wrap an app.

        Args:
            app: what is guarded.
            origins: whose pages may use it.
            keyed: whether requests have to bring a key.
            loopback: whether only programs of this machine can connect.
        """
        self._app = app
        self._origins = origins
        self._keyed, self._loopback = keyed, loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        origin = headers.get("origin")
        allowed = origin is not None and self._origins.allow(origin)
        preflight = scope["method"] == "OPTIONS" and "access-control-request-method" in headers
        told = _told(origin, preflight=preflight) if origin is not None and allowed else []

        async def telling(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).add_vary_header("Origin")
                message["headers"] = [*message["headers"], *told]
            await send(message)

        app: ASGIApp = self._app
        if preflight:
            app = Response()
        elif error := self._refusal(scope["method"], headers, foreign=not allowed):
            app = error.response()
        await app(scope, receive, telling)

    def _refusal(self, method: str, headers: Headers, *, foreign: bool) -> ApiError | None:
        """Why a request is not looked at; None: it is."""
        if self._keyed:
            return None
        host, origin = headers.get("host", ""), headers.get("origin")
        if self._loopback and host and not self._origins.trust(host):
            return _forbidden(
                f"the header Host names {host}, which is not this machine: ask for it as localhost,"
                f" start it with --api-key, or with --cors-origins https://{host}"
            )
        own = headers.get("sec-fetch-site") == "same-origin"  # no page can say that itself
        if method == "POST" and origin and foreign and not own and not _same(origin, host):
            which = "'*'" if origin == "null" else origin
            return _forbidden(
                f"pages of {origin} may not use this server: start it with --cors-origins {which}"
            )
        return None


def _forbidden(sentence: str) -> ApiError:
    return ApiError(403, sentence, code="forbidden_origin")


def _told(origin: str, *, preflight: bool) -> list[tuple[bytes, bytes]]:
    """What an allowed page's browser is told, spelled as everybody spells it."""
    told = {"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": _SHOWN}
    if preflight:
        told |= {
            "Access-Control-Allow-Methods": _METHODS,
            "Access-Control-Allow-Headers": _HEADERS,
            "Access-Control-Max-Age": _SECONDS,
        }
    return [(name.encode(), value.encode("latin-1")) for name, value in told.items()]


def _same(origin: str, host: str) -> bool:
    """Whether an origin is the server's own, whatever the scheme: a proxy may speak TLS for it."""
    return origin.partition("://")[2].lower() == host.lower()


def _host_of(url: str) -> str:
    """The name in a URL, in lower case; "" where there is none."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    return _is_address(name) and ipaddress.ip_address(name).is_loopback


def _is_address(name: str) -> bool:
    """Whether a name is an address."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
