"""The jobs of one request, and what they tell, as a task of the event loop sees them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from ringline.api.errors import error_of, unavailable
from ringline.api.mailbox import Inbox, Mailbox
from ringline.engine.events import Failure, Outcome, Piece
from ringline.engine.job import Request
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.job import RemoteJob
from ringline.errors import RinglineError

__all__ = ["Choices", "Wish", "answered"]

T = TypeVar("T")

#: for what needs no decoding; the process may be busy with all its threads.
_ANSWER_SECONDS: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wish:
    """One job to be: a prompt, as text or tokens, and what is wanted of it."""

    prompt: str | tuple[int, ...]
    request: Request


class Choices:
    """Jobs that run. `close` is due whatever happens: it ends those that nobody reads any more."""

    def __init__(self, inbox: Inbox, fields: Mapping[str, str]) -> None:
        self._jobs: dict[int, RemoteJob] = {}
        self._inbox = inbox
        self._fields = fields

    @classmethod
    async def begin(
        cls,
        engine: EngineProcess,
        mailbox: Mailbox,
        wishes: Sequence[Wish],
        *,
        fields: Mapping[str, str],
    ) -> Choices:
        """Submit all jobs, and wait until all are taken in; if one is not, none runs.

        Args:
            engine: runs them.
            mailbox: brings what they tell.
            wishes: what they are to be.
            fields: how errors about a field of the request begin, and its name.

        Raises:
            ApiError: why a job cannot be, or not now.
        """
        inbox = Inbox()
        choices = cls(inbox, fields)
        try:
            for index, wish in enumerate(wishes):
                sink = mailbox.sink(inbox, index)
                choices._jobs[index] = engine.begin(wish.prompt, wish.request, sink=sink)
            for job in list(choices._jobs.values()):
                await answered(job.accepted)
        except BaseException as error:
            choices.close()
            if isinstance(error, RinglineError):
                raise error_of(error, fields=fields) from None
            raise
        return choices

    async def __aiter__(self) -> AsyncIterator[list[tuple[int, Piece | Outcome]]]:
        """Yield what came, as (number of the choice, event), until all have ended.

        Raises:
            ApiError: why a job failed.
        """
        while self._jobs:
            events: list[tuple[int, Piece | Outcome]] = []
            for index, event in await self._inbox.take():
                if isinstance(event, Failure):
                    yield events  # what came before it is text all the same
                    raise error_of(event.error, fields=self._fields)
                if isinstance(event, Outcome):
                    self._jobs.pop(index, None)
                events.append((index, event))
            yield events

    def close(self) -> None:
        """End the jobs that have not ended; may be called again."""
        jobs, self._jobs = self._jobs, {}
        for job in jobs.values():
            job.cancel()


async def answered(future: Future[T]) -> T:
    """Wait for an answer of the engine's process.

    Raises:
        RinglineError: what it answered. ApiError: it does not answer.
    """
    try:
        return await asyncio.wait_for(asyncio.wrap_future(future), _ANSWER_SECONDS)
    except TimeoutError:
        sentence = f"the engine did not answer within {_ANSWER_SECONDS:g} s"
        raise unavailable(sentence, "engine_silent") from None
