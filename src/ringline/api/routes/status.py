"""How the server is doing: GET /health, /slots."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.errors import unavailable
from ringline.api.served import served
from ringline.api.state import Condition
from ringline.engine.metrics import SlotMetrics

__all__ = ["router"]

router = APIRouter()


@router.api_route("/health", methods=["GET", "HEAD"])  # some balancers ask for the head alone
@router.api_route("/v1/health", methods=["GET", "HEAD"])
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
    metrics = await supervisor.metrics(age=0.0)
    if metrics is None:
        raise unavailable("the engine does not say what its slots do", "engine_silent")
    n_ctx = engine.about.n_ctx
    found = [_slot(number, slot, n_ctx) for number, slot in enumerate(metrics.slots)]
    if request.query_params.get("fail_on_no_slot") and all(s["is_processing"] for s in found):
        raise unavailable("every slot has a request", "no_slot")
    return _json(found)


def _slot(number: int, slot: SlotMetrics, n_ctx: int) -> dict[str, object]:
    """What llama.cpp's server says of a slot, and where it is."""
    busy = slot.state != "idle"
    return {
        "id": number,
        "id_task": slot.job if busy else -1,
        "n_ctx": n_ctx,
        "speculative": False,
        "is_processing": busy,
        "state": slot.state,
        "group": slot.group,
        "n_prompt_tokens": slot.n_prompt,
        "n_cache_tokens": slot.n_cached,
        "next_token": [
            {
                "has_next_token": slot.state == "decoding",
                "n_remain": slot.n_remain,
                "n_decoded": slot.n_done,
            }
        ],
    }


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
