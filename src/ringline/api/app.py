"""The app: its endpoints, its layers, and the engine that begins and ends with it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from ringline import __version__
from ringline.api import errors, prometheus
from ringline.api.auth import KeyCheck
from ringline.api.metrics.http import Counting, HttpCounts
from ringline.api.options import ApiOptions
from ringline.api.origins import OriginCheck
from ringline.api.page import router as page
from ringline.api.routes import chat, completions, embeddings, models, native, status, tokens
from ringline.api.served import Served, share
from ringline.api.supervisor import Supervisor

__all__ = ["Watcher", "make_app"]

#: gets the supervisor, and the task that keeps the engine running.
Watcher = Callable[[Supervisor, "asyncio.Task[None]"], object]


def make_app(options: ApiOptions, watcher: Watcher) -> FastAPI:
    """Make the app.

    Args:
        options: of the server.
        watcher: is told when the engine begins to be started.
    """
    http = HttpCounts()

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        supervisor = Supervisor(options.spec, hang=options.hang)
        share(app, Served(options, supervisor, int(time.time()), http))
        task = asyncio.create_task(supervisor.run())
        watcher(supervisor, task)
        try:
            yield
        finally:
            await supervisor.close()
            await asyncio.wait({task})

    # No pages about the API: its bodies are read by msgspec, of which they know nothing.
    app = FastAPI(
        title="ringline",
        version=__version__,
        lifespan=life,
        openapi_url=None,
        redirect_slashes=False,
    )
    errors.install(app)
    rooms = (completions, chat, native, embeddings, models, tokens, status, prometheus, page)
    for room in rooms:
        app.include_router(room.router)
    if options.api_keys:
        app.add_middleware(KeyCheck, keys=options.api_keys)
    app.add_middleware(
        OriginCheck,
        origins=options.origins,
        keyed=bool(options.api_keys),
        loopback=options.loopback,
    )
    app.add_middleware(Counting, counts=http)  # outermost: it sees who is turned away
    return app
