"""The engine's process: makes an engine, serves one client, ends with it."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from ringline.engine.embedding import with_embeddings
from ringline.engine.engine import Engine
from ringline.engine.events import Event, Piece, Sink
from ringline.engine.job import Job, Request
from ringline.engine.process.answers import Answers, model_facts
from ringline.engine.process.channel import Channel
from ringline.engine.process.error_facts import ErrorFacts
from ringline.engine.process.messages import (
    About,
    Accepted,
    Cancel,
    EngineSpec,
    Failed,
    FromClient,
    Loading,
    Lost,
    Open,
    Ready,
    Submit,
)
from ringline.engine.process.telling import Telling
from ringline.engine.ring import Ring
from ringline.errors import EngineError, RinglineError
from ringline.settings import debug_level, reply_timeout

__all__ = ["main", "serve"]


def serve(end: socket.socket) -> None:
    """Serve the client at the other end of a connected socket until it goes away."""
    channel = Channel(end, msgspec.msgpack.Decoder[FromClient](FromClient))
    with ExitStack() as stack:
        stack.callback(channel.close)
        try:
            first = channel.receive()
            if not isinstance(first, Open):
                raise EngineError("the first message to an engine's process must open an engine")
            telling = Telling(channel.send)
            engine = _open(stack, first.spec, lambda share: channel.send(Loading(share)))
            session = _Session(engine, channel, telling)
            stack.callback(session.close)
            _test_token(engine)
            channel.send(Ready(_about(engine)))
            session.run()
        except RinglineError as error:
            channel.send(Failed(-1, ErrorFacts.of(error)))


def _open(stack: ExitStack, spec: EngineSpec, progress: Callable[[float], bool]) -> Engine:
    """Make what a specification asks for; `stack` closes it."""
    ring = stack.enter_context(
        Ring.local(spec.local_stages, n_threads=spec.n_threads)
        if spec.local_stages
        else Ring(spec.nodes, tls=spec.tls)
    )
    placed = ring.place(
        spec.model,
        devices=spec.devices,
        tensor_split=spec.tensor_split,
        n_gpu_layers=spec.n_gpu_layers,
        n_ctx=with_embeddings(spec.n_ctx, spec.embeddings),
        n_threads=spec.n_threads,
        repack=spec.repack,
        progress=progress,
    )
    return stack.enter_context(
        Engine(
            ring,
            placed,
            parallel=spec.parallel,
            groups=spec.groups,
            n_ctx=spec.n_ctx,
            n_batch=spec.n_batch,
            n_ubatch=spec.n_ubatch,
            step_tokens=spec.step_tokens,
            queue=spec.queue,
            embeddings=spec.embeddings,
        )
    )


def _about(engine: Engine) -> About:
    capacity = engine.capacity
    return About(
        model=engine.model.description,
        stages=tuple(engine.stages),
        capacity=capacity.describe(),
        n_ctx=capacity.n_ctx,
        parallel=capacity.parallel,
        facts=model_facts(engine.model),
        writes=engine.writes,
        embedding=engine.embedding,
    )


def _test_token(engine: Engine) -> None:
    """Decode one token in each context: after that every stage has answered.

    Raises:
        RinglineError: which node failed.
    """
    model = engine.model
    token = next((t for t in (model.bos, model.eos) if t is not None), 0)
    seconds = reply_timeout() * (1 + len(engine.stages))
    if engine.embedding is not None:
        engine.embed([(token,)]).result(seconds)
    slots = engine.limits.slots if engine.writes else ()
    for job in [engine.submit_request((token,), Request(n_predict=1)) for _ in slots]:
        job.result(seconds)


class _Session:
    """One client's jobs, by the numbers that it gave them."""

    def __init__(self, engine: Engine, channel: Channel[FromClient], telling: Telling) -> None:
        self._engine = engine
        self._channel = channel
        self._telling = telling
        self._answers = Answers(engine, channel.send, computed=self._after_step)
        self._jobs: dict[int, Job] = {}
        self._told_end = False
        engine.after_step(self._after_step)

    def run(self) -> None:
        """Do what the client says until it goes away."""
        while (message := self._channel.receive()) is not None:
            match message:
                case Submit():
                    self._submit(message)
                case Cancel(job):
                    if job in self._jobs:
                        self._jobs[job].cancel()
                    else:
                        self._answers.cancel(job)
                case Open():
                    raise EngineError("an engine's process has one engine, and it is there")
                case _:
                    self._answers.take(message)
            self._telling.flush()

    def close(self) -> None:
        """Answer no more questions."""
        self._answers.close()

    def _after_step(self) -> None:
        """A step is over: its events are complete. On the group's thread."""
        self._telling.flush()
        cause = self._engine.cause
        if cause is not None and not self._told_end:
            self._told_end = True
            self._channel.send(Lost(ErrorFacts.of(cause)))

    def _submit(self, message: Submit) -> None:
        number = message.job
        try:
            job = self._engine.submit_request(
                message.prompt, message.request, sink=self._sink(number)
            )
        except RinglineError as error:
            self._channel.send(Failed(number, ErrorFacts.of(error)))
            return
        self._channel.send(Accepted(number))
        self._jobs[number] = job
        if job.state.ended:  # its end was told before it stood there
            self._jobs.pop(number, None)

    def _sink(self, number: int) -> Sink:
        def tell(event: Event) -> None:
            self._telling.tell(number, event)
            if not isinstance(event, Piece):
                self._jobs.pop(number, None)

        return tell


def main() -> None:
    """Entry of the process: its argument is the number of the socket that it inherited."""
    level = logging.DEBUG if debug_level() else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="ringline engine: %(message)s")
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
