"""How an answer gets to its client: as one object, or as events while the text is written.

A client that goes away frees its slots at once, whichever way it is answered.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Final, Protocol, TypeVar

from fastapi import Request
from sse_starlette import EventSourceResponse
from sse_starlette.sse import SendTimeoutError
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ringline.api.choices import Choices
from ringline.api.errors import ApiError
from ringline.api.served import served
from ringline.engine.events import Outcome, Piece

__all__ = ["GONE", "Answer", "tell", "unless_gone"]

T = TypeVar("T")

_log = logging.getLogger(__name__)

#: seconds of silence after which a comment keeps a stream alive.
_PING_SECONDS: Final = 15
#: how long a client may read nothing, when the kernel takes no more for it.
_SEND_SECONDS: Final = 300.0
#: nobody reads it: the client has gone.
GONE: Final = 499


class Answer(Protocol):
    """Turns what jobs tell into what the client reads.

    Attributes:
        closing: the last event of a stream, the same for all.
    """

    closing: bytes

    def begin(self, count: int) -> bytes:
        """The events before any text, for so many choices."""

    def piece(self, index: int, piece: Piece) -> bytes:
        """The events of a piece of text of a choice."""

    def end(self, index: int, outcome: Outcome) -> bytes:
        """The events of the end of a choice."""

    def last(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """The events after the end of all choices."""

    def whole(self, outcomes: Mapping[int, Outcome]) -> bytes:
        """Everything as one object."""


async def tell(
    request: Request, choices: Choices, answer: Answer, *, count: int, stream: bool
) -> Response:
    """Answer a request.

    Args:
        request: whose client is told.
        choices: the jobs; they end with the answer.
        answer: the shape of it.
        count: number of choices.
        stream: as events.

    Raises:
        ApiError: why a job failed, where nothing has been told yet.
    """
    if stream:
        return _Events(choices, _events(request, choices, answer, count))
    try:
        outcomes = await unless_gone(request, _outcomes(choices))
    except ApiError as error:
        _note(request, error)
        raise
    finally:
        choices.close()
    if outcomes is None:
        return Response(status_code=GONE)
    return Response(answer.whole(outcomes), media_type="application/json")


class _Events(EventSourceResponse):
    """A stream; however it ends, and even if it never begins, its jobs end with it."""

    def __init__(self, choices: Choices, events: AsyncIterator[bytes]) -> None:
        self._choices = choices
        super().__init__(events, ping=_PING_SECONDS, sep="\n", send_timeout=_SEND_SECONDS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        except SendTimeoutError:
            _log.warning("a client that has read nothing for %g s is cut off", _SEND_SECONDS)
        finally:
            self._choices.close()


async def _events(
    request: Request, choices: Choices, answer: Answer, count: int
) -> AsyncIterator[bytes]:
    """What a client reads: all that came at once goes out in one piece."""
    outcomes: dict[int, Outcome] = {}
    opening = answer.begin(count)
    if opening:
        yield opening
    try:
        async for batch in choices:
            parts = []
            for index, told in batch:
                if isinstance(told, Piece):
                    parts.append(answer.piece(index, told))
                else:
                    outcomes[index] = told
                    parts.append(answer.end(index, told))
            yield parts[0] if len(parts) == 1 else b"".join(parts)
    except ApiError as error:
        _note(request, error)
        yield b"data: " + error.body() + b"\n\n"
        return
    if rest := answer.last(outcomes) + answer.closing:
        yield rest


def _note(request: Request, error: ApiError) -> None:
    """Note a failure that is not the client's."""
    if error.status >= 500:
        served(request).supervisor.tell("warning", f"a request failed: {error.message}")


async def unless_gone(request: Request, work: Coroutine[None, None, T]) -> T | None:
    """Wait for what a client wants; None: the client has gone before, and `work` was cancelled.

    Raises:
        ApiError: why it failed.
    """
    task = asyncio.create_task(work)
    gone = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        return await task if task.done() else None
    finally:
        task.cancel()
        gone.cancel()


async def _outcomes(choices: Choices) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    async for batch in choices:
        found.update((index, told) for index, told in batch if isinstance(told, Outcome))
    return found


async def _disconnect(request: Request) -> None:
    """Wait until the client goes away; its body was read before."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
