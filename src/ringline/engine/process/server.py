"""The engine's process: makes an engine, serves one client, ends with it."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack

import msgspec

from ringline.engine.engine import Engine
from ringline.engine.events import Event, Failure, Piece, Sink
from ringline.engine.job import Job
from ringline.engine.process.channel import Channel
from ringline.engine.process.messages import (
    About,
    Accepted,
    AskMetrics,
    Cancel,
    Done,
    EngineSpec,
    ErrorFacts,
    Failed,
    FromClient,
    Loading,
    Metrics,
    Open,
    Ready,
    Submit,
    Text,
)
from ringline.engine.ring import Ring
from ringline.errors import EngineError, RinglineError
from ringline.settings import debug_level

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
            engine = _open(stack, first.spec, lambda share: channel.send(Loading(share)))
            channel.send(Ready(_about(engine)))
            _Session(engine, channel).run()
        except RinglineError as error:
            channel.send(Failed(-1, ErrorFacts.of(error)))


def _open(stack: ExitStack, spec: EngineSpec, progress: Callable[[float], bool]) -> Engine:
    """Make what a specification asks for; `stack` closes it."""
    ring = stack.enter_context(
        Ring.local(spec.local_stages, n_threads=spec.n_threads)
        if spec.local_stages
        else Ring(spec.nodes)
    )
    placed = ring.place(
        spec.model,
        devices=spec.devices,
        tensor_split=spec.tensor_split,
        n_gpu_layers=spec.n_gpu_layers,
        n_ctx=spec.n_ctx,
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
    )


class _Session:
    """One client's jobs, by the numbers that it gave them."""

    def __init__(self, engine: Engine, channel: Channel[FromClient]) -> None:
        self._engine = engine
        self._channel = channel
        self._jobs: dict[int, Job] = {}

    def run(self) -> None:
        """Do what the client says until it goes away."""
        while (message := self._channel.receive()) is not None:
            match message:
                case Submit():
                    self._submit(message)
                case Cancel(job) if job in self._jobs:
                    self._jobs[job].cancel()
                case AskMetrics(question):
                    self._channel.send(Metrics(question, self._engine.metrics()))

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
            if isinstance(event, Piece):
                self._channel.send(Text(number, event))
                return
            if isinstance(event, Failure):
                self._channel.send(Failed(number, ErrorFacts.of(event.error)))
            else:
                self._channel.send(Done(number, event))
            self._jobs.pop(number, None)

        return tell


def main() -> None:
    """Entry of the process: its argument is the number of the socket that it inherited."""
    level = logging.DEBUG if debug_level() else logging.WARNING
    logging.basicConfig(stream=sys.stderr, level=level, format="ringline engine: %(message)s")
    with socket.socket(fileno=int(sys.argv[1])) as end:
        serve(end)
