"""What the routes of an app share: its options and its supervisor."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI, Request

from ringline.api.metrics.http import HttpCounts
from ringline.api.options import ApiOptions
from ringline.api.supervisor import Supervisor

__all__ = ["Served", "served", "share"]


@dataclass(frozen=True, slots=True)
class Served:
    """What is served.

    Attributes:
        options: of the server.
        supervisor: has the engine.
        created: when the server began, seconds since 1970.
        http: counts requests.
    """

    options: ApiOptions
    supervisor: Supervisor
    created: int
    http: HttpCounts


def share(app: FastAPI, what: Served) -> None:
    """Have the routes of an app find it."""
    app.state.served = what


def served(request: Request) -> Served:
    """What the app of a request serves."""
    found = request.app.state.served
    assert isinstance(found, Served)
    return found
