"""Requests of HTTP, counted by a layer round the app. On the event loop alone."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Counting", "HttpCounts"]

#: what has no route: unknown paths would be labels without number.
_NO_ROUTE: Final = "none"
#: the client went away before there was an answer.
_NO_ANSWER: Final = "none"
_METHODS: Final = frozenset({"GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH"})


@dataclass(slots=True)
class HttpCounts:
    """What came so far.

    Attributes:
        requests: by route, method and status.
        under_way: requests that are being answered, streams among them.
    """

    requests: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    under_way: int = 0


class Counting:
    """A layer round an app that counts its requests where they end."""

    def __init__(self, app: ASGIApp, counts: HttpCounts) -> None:
        """Wrap an app; count into `counts`."""
        self._app = app
        self._counts = counts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = _NO_ANSWER

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        self._counts.under_way += 1
        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = "500" if status == _NO_ANSWER else status
            raise
        finally:
            self._counts.under_way -= 1
            self._counts.requests[_route(scope), _method(scope), status] += 1


def _route(scope: Scope) -> str:
    """The path of the route as it was declared."""
    return str(getattr(scope.get("route"), "path", _NO_ROUTE))


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in _METHODS else "other"
