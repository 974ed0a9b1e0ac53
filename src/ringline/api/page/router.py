"""The page on HTTP: `/`, `/static/NAME` and the events of `/ring/events`.

A browser asks each time whether a file is still the same, so that a server that was updated never
runs with yesterday's modules. Nothing but this server's own files is ever loaded: the policy says
so to the browser, which then refuses whatever else would get into the page.
"""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request
from sse_starlette.sse import EventSourceResponse
from starlette.responses import Response

from ringline.api.errors import ApiError
from ringline.api.page.assets import INDEX, Asset, load_assets
from ringline.api.page.feed import Feed
from ringline.api.served import served

__all__ = ["router"]

_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'; object-src 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
#: a viewer who takes nothing for so long is cut off: the page connects again by itself.
_SEND_SECONDS: Final = 20.0


router = APIRouter(include_in_schema=False)
_ASSETS: Final = load_assets()


@router.api_route("/", methods=["GET", "HEAD"])
async def index(request: Request) -> Response:
    """The page."""
    return _answer(request, _ASSETS[INDEX])


@router.api_route("/static/{name}", methods=["GET", "HEAD"])
async def static(request: Request, name: str) -> Response:
    """A file of the page."""
    if name not in _ASSETS:
        raise ApiError(404, f"there is nothing at {request.url.path}")
    return _answer(request, _ASSETS[name])


@router.get("/ring/events")
async def events(request: Request) -> Response:
    """The ring as it is now, once a second, and what happens to it."""
    feed = _feed(request)
    feed.check_room()
    return EventSourceResponse(feed.events(), send_timeout=_SEND_SECONDS)


def _feed(request: Request) -> Feed:
    """The one feed of an app; it is made when somebody looks first."""
    state = request.app.state
    if not hasattr(state, "feed"):
        options, supervisor = served(request).options, served(request).supervisor
        state.feed = Feed(supervisor, model=options.model_id, nodes=options.spec.nodes)
    feed = state.feed
    assert isinstance(feed, Feed)
    return feed


def _answer(request: Request, asset: Asset) -> Response:
    headers = {**_HEADERS, "ETag": asset.tag}
    known = request.headers.get("if-none-match", "").replace("W/", "").split(",")
    if asset.tag in {tag.strip() for tag in known}:
        return Response(status_code=304, headers=headers)
    return Response(asset.body, headers=headers, media_type=asset.media_type)
