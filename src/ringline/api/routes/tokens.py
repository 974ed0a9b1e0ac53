"""POST /tokenize, /detokenize, /apply-template, and how many tokens a conversation has."""

from __future__ import annotations

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.choices import answered
from ringline.api.requests.body import read_body
from ringline.api.requests.chat import ChatBody
from ringline.api.served import served
from ringline.engine.process.questions import AskText, AskTokens, Said, Tokens

__all__ = ["router"]

router = APIRouter()


class TokenizeBody(msgspec.Struct, frozen=True):
    """What is tokenized, and how."""

    content: str
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeBody(msgspec.Struct, frozen=True):
    """Tokens."""

    tokens: list[int]


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """Turn a text into tokens."""
    body = await read_body(request, TokenizeBody)
    engine = served(request).supervisor.engine
    found = await answered(
        engine.ask(
            lambda n: AskTokens(n, body.content, body.add_special, body.parse_special), Tokens
        )
    )
    if not body.with_pieces:
        return _json({"tokens": found.tokens})
    pairs = zip(found.tokens, found.pieces, strict=True)
    return _json({"tokens": [{"id": token, "piece": _piece(piece)} for token, piece in pairs]})


@router.post("/detokenize")
async def detokenize(request: Request) -> Response:
    """Turn tokens into a text; control tokens are shown by their names."""
    body = await read_body(request, DetokenizeBody)
    engine = served(request).supervisor.engine
    tokens = tuple(body.tokens)
    return _json({"content": (await answered(engine.ask(lambda n: AskText(n, tokens), Said))).text})


@router.post("/apply-template")
async def apply_template(request: Request) -> Response:
    """What the model's chat template makes of a conversation."""
    body = await read_body(request, ChatBody)
    engine = served(request).supervisor.engine
    use = body.tool_use(engine.about.facts.chat_template)
    return _json({"prompt": await body.prompt(engine, use)})


@router.post("/v1/chat/completions/input_tokens")
@router.post("/chat/completions/input_tokens")
async def input_tokens(request: Request) -> Response:
    """How many tokens the prompt of a conversation has."""
    body = await read_body(request, ChatBody)
    engine = served(request).supervisor.engine
    prompt = await body.prompt(engine, body.tool_use(engine.about.facts.chat_template))
    found = await answered(engine.ask(lambda n: AskTokens(n, prompt, True, True), Tokens))
    return _json({"object": "response.input_tokens", "input_tokens": len(found.tokens)})


def _piece(piece: bytes) -> str | list[int]:
    """A text, or the bytes of what is none."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return list(piece)


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")
