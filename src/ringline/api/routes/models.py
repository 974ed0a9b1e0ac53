"""What is served: GET /v1/models, /v1/models/{name}, /props."""

from __future__ import annotations

import dataclasses

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline import __version__
from ringline.api.answers.head import FINGERPRINT
from ringline.api.errors import ApiError, unavailable
from ringline.api.served import Served, served
from ringline.engine.process.messages import About
from ringline.llama.parameters import RANDOM_SEED, SamplingParams

__all__ = ["router"]

router = APIRouter()


@router.get("/v1/models")
@router.get("/models")
async def models(request: Request) -> Response:
    """The one model, in a list."""
    return _json({"object": "list", "data": [_model(served(request))]})


@router.get("/v1/models/{name:path}")
async def model(request: Request, name: str) -> Response:
    """The model of that name."""
    found = served(request)
    if name != found.options.model_id:
        told = f"there is no model {name!r} here, but {found.options.model_id!r}"
        raise ApiError(404, told, param="model", code="model_not_found")
    return _json(_model(found))


@router.get("/props")
async def props(request: Request) -> Response:
    """What llama.cpp's server says of itself, as far as it has a meaning here."""
    found = served(request)
    about = found.supervisor.about
    if about is None:
        raise unavailable(found.supervisor.absence(), "engine_starting")
    return _json(
        {
            "default_generation_settings": {"n_ctx": about.n_ctx, "params": _defaults()},
            "total_slots": about.parallel,
            "model_alias": found.options.model_id,
            "model_path": found.options.spec.model,
            "modalities": {"vision": False, "audio": False},
            "chat_template": about.facts.chat_template or "",
            "bos_token": about.facts.bos,
            "eos_token": about.facts.eos,
            "build_info": FINGERPRINT,
            "is_sleeping": False,
            "ringline": {
                "version": __version__,
                "model": about.model,
                "capacity": about.capacity,
                "stages": [dataclasses.asdict(stage) for stage in about.stages],
            },
        }
    )


def _model(found: Served) -> dict[str, object]:
    about = found.supervisor.about
    return {
        "id": found.options.model_id,
        "object": "model",
        "created": found.created,
        "owned_by": "ringline",
        "meta": None if about is None else _meta(about),
    }


def _meta(about: About) -> dict[str, object]:
    facts = about.facts
    return {
        "name": facts.name,
        "n_vocab": facts.n_vocab,
        "n_ctx_train": facts.n_ctx_train,
        "n_embd": facts.n_embd,
        "n_params": facts.n_params,
        "size": facts.size,
    }


def _defaults() -> dict[str, object]:
    """The parameters of a request that gives none, under their names in requests."""
    defaults = dataclasses.asdict(SamplingParams())
    defaults["repeat_last_n"] = defaults.pop("penalty_last_n")
    return {**defaults, "seed": RANDOM_SEED, "n_predict": -1, "max_tokens": -1, "stop": []}


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
