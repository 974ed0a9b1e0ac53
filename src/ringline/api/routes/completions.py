"""POST /v1/completions: continue a text."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.answers.completion import CompletionAnswer
from ringline.api.answers.head import Head
from ringline.api.answers.telling import tell
from ringline.api.choices import Choices
from ringline.api.requests.body import read_body
from ringline.api.requests.checked import checked_wishes, fields_of
from ringline.api.requests.completion import CompletionBody
from ringline.api.served import served

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/completions")
async def completions(request: Request) -> Response:
    """Continue one prompt or several."""
    body = await read_body(request, CompletionBody)
    found = served(request)
    engine = found.supervisor.engine
    wants_usage = body.wants_usage
    source = body.grammar_source()
    grammar = await source.resolve(engine) if source else None
    fields = fields_of("prompt", source)
    wishes = checked_wishes(
        lambda: body.wishes(engine.about.n_ctx, grammar, engine.about.facts.ends),
        fields=fields,
        count=len(body.prompts()) * body.n_choices,
        room=found.options.room,
    )
    answer = CompletionAnswer(
        Head.new("cmpl", "text_completion", found.options.model_id),
        n_choices=body.n_choices,
        wants_logprobs=body.logprobs is not None,
        wants_usage=wants_usage,
    )
    choices = await Choices.begin(engine, found.supervisor.mailbox, wishes, fields=fields)
    return await tell(request, choices, answer, count=len(wishes), stream=bool(body.stream))
