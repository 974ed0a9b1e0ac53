"""POST /v1/embeddings: the vectors of texts, of length 1 as OpenAI's are."""

from __future__ import annotations

import asyncio
import base64

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from ringline.api.answers.telling import GONE, unless_gone
from ringline.api.errors import ApiError, bad_request, error_of
from ringline.api.requests.body import read_body
from ringline.api.requests.embeddings import EmbeddingsBody
from ringline.api.requests.texts import Text
from ringline.api.served import served
from ringline.engine.embedding import Embedding
from ringline.engine.process.client import EngineProcess
from ringline.errors import BusyError, CallerError, RinglineError

__all__ = ["router"]

router = APIRouter()


@router.post("/v1/embeddings")
@router.post("/embeddings")
async def embeddings(request: Request) -> Response:
    """The vectors of texts, in the order of the request."""
    body = await read_body(request, EmbeddingsBody)
    found = served(request)
    engine = found.supervisor.engine
    if engine.about.embedding is None:
        raise ApiError(
            501,
            "this server has no context for embeddings: start it with --embeddings",
            code="embeddings_off",
        )
    body.check_width(engine.about.embedding.width)
    as_base64, texts = body.base64, body.texts()
    vectors = await unless_gone(request, _vectors(engine, texts))
    if vectors is None:
        return Response(status_code=GONE)
    answer = _answer(vectors, found.options.model_id, as_base64=as_base64)
    return Response(msgspec.json.encode(answer), media_type="application/json")


async def _vectors(engine: EngineProcess, texts: list[Text]) -> list[Embedding]:
    """Have texts embedded; whoever does not wait for it any more cancels it.

    Raises:
        ApiError: which input it is, or why it cannot be now.
    """
    try:
        answer = engine.embed(texts)
        try:
            return (await asyncio.shield(asyncio.wrap_future(answer))).embeddings
        except asyncio.CancelledError:
            engine.cancel(answer)
            raise
    except RinglineError as error:
        if isinstance(error, CallerError) and not isinstance(error, BusyError):
            raise bad_request(str(error), "input") from None
        raise error_of(error) from None


def _answer(vectors: list[Embedding], model: str, *, as_base64: bool) -> dict[str, object]:
    n_tokens = sum(vector.n_tokens for vector in vectors)
    data = [
        {
            "object": "embedding",
            "index": index,
            "embedding": (
                base64.b64encode(vector.data).decode() if as_base64 else vector.vector.tolist()
            ),
        }
        for index, vector in enumerate(vectors)
    ]
    usage = {"prompt_tokens": n_tokens, "total_tokens": n_tokens}
    return {"object": "list", "data": data, "model": model, "usage": usage}
