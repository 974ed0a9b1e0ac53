"""POST /completion: continue a text, as llama.cpp's server does it for its own clients."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.answers.native import NativeAnswer
from ringline.api.answers.telling import tell
from ringline.api.choices import Choices
from ringline.api.requests.body import read_body
from ringline.api.requests.checked import checked_wishes, fields_of
from ringline.api.requests.native import NativeBody
from ringline.api.served import served

__all__ = ["router"]

router = APIRouter()


@router.post("/completion")
@router.post("/completions")
async def completion(request: Request) -> Response:
    """Continue one prompt or several."""
    body = await read_body(request, NativeBody)
    found = served(request)
    engine = found.supervisor.engine
    source = body.grammar_source()
    grammar = await source.resolve(engine) if source else None
    fields = fields_of("prompt", source)
    wishes = checked_wishes(
        lambda: body.wishes(engine.about.n_ctx, grammar, engine.about.facts.ends),
        fields=fields,
        count=len(body.prompts()) * body.n_choices,
        room=found.options.room,
    )
    answer = NativeAnswer(found.options.model_id, wishes, returns_tokens=bool(body.return_tokens))
    choices = await Choices.begin(engine, found.supervisor.mailbox, wishes, fields=fields)
    return await tell(request, choices, answer, count=len(wishes), stream=bool(body.stream))
