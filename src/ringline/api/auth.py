"""API keys: who does not bring one is told 401, before anything of the request is looked at."""

from __future__ import annotations

import hmac
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from ringline.api.errors import ApiError

__all__ = ["KeyCheck"]

#: what a balancer or a browser asks before it can show a key.
_PUBLIC: Final = frozenset({"/", "/health", "/v1/health"})
_PUBLIC_PREFIX: Final = "/static/"


class KeyCheck:
    """A layer round an app: passes requests on that bring a key."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        """Wrap an app.

        Args:
            app: what is guarded.
            keys: any of them will do.
        """
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request."""
        if (
            scope["type"] != "http"
            or _is_public(scope["path"])
            or self._knows(Headers(scope=scope))
        ):
            await self._app(scope, receive, send)
            return
        error = ApiError(
            401,
            "this server wants an API key: send the header Authorization: Bearer KEY",
            code="invalid_api_key",
        )
        await error.response()(scope, receive, send)

    def _knows(self, headers: Headers) -> bool:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        shown = token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")
        found = shown.encode("latin-1", "replace")  # the bytes as they came
        # All are compared, each in a time that says nothing of how much of it was right.
        return sum(hmac.compare_digest(found, key) for key in self._keys) > 0


def _is_public(path: str) -> bool:
    return path in _PUBLIC or path.startswith(_PUBLIC_PREFIX)
