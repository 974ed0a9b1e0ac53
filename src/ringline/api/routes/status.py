"""How the server is doing: GET /health, /slots."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.errors import unavailable
from ringline.api.served import served
from ringline.api.state import Condition

__all__ = ["router"]

router = APIRouter()


@router.get("/health")
@router.get("/v1/health")
async def health(request: Request) -> Response:
    """200 where requests are answered; 503 with the reason where they are not."""
    supervisor = served(request).supervisor
    if supervisor.state.condition is not Condition.READY:
        code = f"engine_{supervisor.state.condition}"
        raise unavailable(supervisor.absence(), code)
    return _json({"status": "ok"})


@router.get("/slots")
async def slots(request: Request) -> Response:
    """One entry for each slot."""
    supervisor = served(request).supervisor
    engine = supervisor.engine
    metrics = await supervisor.metrics()
    if metrics is None:
        raise unavailable("the engine does not say what its slots do", "engine_silent")
    found = [
        {"group": number, "is_processing": index < group.busy_slots}
        for number, group in enumerate(metrics.groups)
        for index in range(group.slots)
    ]
    if request.query_params.get("fail_on_no_slot") and all(s["is_processing"] for s in found):
        raise unavailable("every slot has a request", "no_slot")
    return _json(
        [
            {"id": number, "n_ctx": engine.about.n_ctx, "speculative": False, **slot}
            for number, slot in enumerate(found)
        ]
    )


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
