"""POST /v1/chat/completions: answer a conversation, with tools if there are some."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.answers.chat import ChatAnswer
from ringline.api.answers.head import Head
from ringline.api.answers.telling import tell
from ringline.api.choices import Choices
from ringline.api.requests.body import read_body
from ringline.api.requests.chat import ChatBody
from ringline.api.requests.checked import checked_wishes, fields_of
from ringline.api.requests.tools import ToolFormat, ToolUse
from ringline.api.served import served
from ringline.api.tools.reader import ToolReader

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/chat/completions")
@router.post("/chat/completions")
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    body = await read_body(request, ChatBody)
    found = served(request)
    engine = found.supervisor.engine
    wants_usage = body.wants_usage
    template = engine.about.facts.chat_template
    use = body.tool_use(template)
    source = body.grammar_source(use)
    grammar = await source.resolve(engine) if source else None
    prompt = await body.prompt(engine, use)
    n_ctx = engine.about.n_ctx
    fields = fields_of("messages", source)
    wishes = checked_wishes(
        lambda: body.wishes(
            prompt,
            n_ctx,
            grammar,
            chatml=template is None,
            special=use is not None and use.marked,
            ends=engine.about.facts.ends,
        ),
        fields=fields,
        count=body.n_choices,
        room=found.options.room,
    )
    answer = ChatAnswer(
        Head.new(
            "chatcmpl",
            "chat.completion.chunk" if body.stream else "chat.completion",
            found.options.model_id,
        ),
        wants_logprobs=bool(body.logprobs),
        wants_usage=wants_usage,
        reader=None if use is None else lambda: _reader(use),
    )
    choices = await Choices.begin(engine, found.supervisor.mailbox, wishes, fields=fields)
    return await tell(request, choices, answer, count=len(wishes), stream=bool(body.stream))


def _reader(use: ToolUse) -> ToolReader:
    return ToolReader(use.functions, bare=use.forced or use.format is ToolFormat.LLAMA3)
