"""Keeps an engine's process running: starts it, watches it, starts it again when it is lost.

Everything here runs on the event loop, but for the wait for a process to start or to end.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections import Counter, deque
from contextlib import suppress
from typing import Final

from ringline.api.errors import unavailable
from ringline.api.mailbox import Mailbox
from ringline.api.state import Condition, EngineState, LogEntry
from ringline.api.watch import asked_metrics, trouble_of
from ringline.engine.metrics import EngineMetrics, blame
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.messages import About, EngineSpec
from ringline.errors import EngineError, RemoteError, RinglineError

__all__ = ["Supervisor"]

_log = logging.getLogger(__name__)

_FIRST_PAUSE: Final = 0.5
_LONGEST_PAUSE: Final = 30.0
#: an engine that ran so long has earned a quick start.
_STEADY_SECONDS: Final = 60.0
#: a start whose progress stands still for so long hangs; the last part of a load tells nothing.
_START_SILENCE: Final = 900.0
_METRICS_AGE: Final = 0.5
_METRICS_SECONDS: Final = 5.0
_MOST_EVENTS: Final = 200


class Supervisor:
    """One engine at a time, as long as it is wanted.

    Attributes:
        state: how the engine is doing.
        about: of the engine that runs, or ran last; None before there was one.
        events: what happened lately, the newest last.
        stopping: set when the server ends; streams without an end watch it.
        ready: set while the engine is ready.
        mailbox: brings the events of jobs to the loop.
        restarts: engines that were started after the first.
        losses: engines that were lost, or could not be started, by node and kind of error.
    """

    def __init__(self, spec: EngineSpec, *, hang: float) -> None:
        """Begin with no engine; `run` starts it. On the event loop's thread.

        Args:
            spec: which engine.
            hang: seconds without an answer after which an engine is started again.
        """
        self.state = EngineState(Condition.STARTING)
        self.about: About | None = None
        self.events: deque[LogEntry] = deque(maxlen=_MOST_EVENTS)
        self.stopping = asyncio.Event()
        self.ready = asyncio.Event()
        self.mailbox = Mailbox(asyncio.get_running_loop())
        self.restarts = -1
        self.losses: Counter[tuple[str, str]] = Counter()
        self._spec, self._hang = spec, hang
        self._engine: EngineProcess | None = None
        self._starting_pid = 0
        self._progress_at = 0.0
        self._metrics: EngineMetrics | None = None
        self._metrics_at = 0.0
        self._asking: asyncio.Task[None] | None = None

    @property
    def engine(self) -> EngineProcess:
        """The engine that runs.

        Raises:
            ApiError: there is none now; says why.
        """
        if self._engine is None or self.state.condition is not Condition.READY:
            raise unavailable(self.absence(), f"engine_{self.state.condition}")
        return self._engine

    def absence(self) -> str:
        """Why no request can be answered now, as a sentence."""
        match self.state.condition:
            case Condition.STARTING:
                return f"the model is being loaded ({self.state.loaded:.0%})"
            case Condition.STOPPING:
                return "the server is ending"
        return f"the engine is lost and will be started again: {self.state.why}"

    async def run(self) -> None:
        """Keep an engine running until `stop`.

        Raises:
            RinglineError: the first one cannot be made, and never could.
        """
        pause = _FIRST_PAUSE
        while not self.stopping.is_set():
            began = time.monotonic()
            cause = await self._life()
            if self.stopping.is_set():
                return
            if time.monotonic() - began > _STEADY_SECONDS:
                pause = _FIRST_PAUSE
            self.losses[blame(cause)] += 1
            self._enter(EngineState(Condition.LOST, str(cause)), level="error")
            await self._drop(cause)
            with suppress(TimeoutError):
                await asyncio.wait_for(self.stopping.wait(), pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def stop(self) -> None:
        """End: no new jobs are taken, those under way go on until `run` is told off."""
        if self.stopping.is_set():
            return
        self._enter(EngineState(Condition.STOPPING, "the server was asked to end"))
        self.stopping.set()

    async def close(self) -> None:
        """End the engine's process."""
        self.stop()
        self._kill_start()
        if self._engine is not None:
            await asyncio.to_thread(self._engine.close)
            self._engine = None

    def abandon(self) -> None:
        """End the engine's process without waiting for anything, if it is still there."""
        self.stop()
        self._kill_start()
        if self._engine is not None:
            self._engine.kill(EngineError("the server was ended at once"))

    async def metrics(self, *, age: float = _METRICS_AGE) -> EngineMetrics | None:
        """The engine's numbers; None where there is no engine, or it does not answer.

        Args:
            age: how old they may be, seconds.
        """
        engine = self._engine
        if engine is None or self.state.condition is Condition.LOST:
            return None
        if age == 0.0:
            return await asked_metrics(engine, _METRICS_SECONDS)
        if time.monotonic() - self._metrics_at > age:
            self._asking = self._asking or asyncio.create_task(self._ask_metrics(engine))
            await asyncio.shield(self._asking)
        return self._metrics

    def tell(self, level: str, text: str) -> None:
        """Note that something happened: in the log of this process, and in `events`."""
        self.events.append(LogEntry(level, text))
        _log.log(logging.getLevelName(level.upper()), "%s", text)

    async def _ask_metrics(self, engine: EngineProcess) -> None:
        try:
            self._metrics = await asked_metrics(engine, _METRICS_SECONDS)
            self._metrics_at = time.monotonic()
        finally:
            self._asking = None

    async def _life(self) -> RinglineError:
        """Start an engine and wait for its end; why it ended.

        Raises:
            RinglineError: the first one cannot be made, and that is not a node's fault.
        """
        self._enter(EngineState(Condition.STARTING))
        self.restarts += 1
        try:
            engine = await self._started()
        except RinglineError as error:
            if self.about is None and not isinstance(error, RemoteError | EngineError):
                raise
            return error
        if self.stopping.is_set():
            await asyncio.to_thread(engine.close)
            return EngineError("the server is ending")
        return await self._watched(engine)

    async def _started(self) -> EngineProcess:
        loop = asyncio.get_running_loop()

        def progress(share: float) -> None:
            loop.call_soon_threadsafe(self._loaded, share)

        def began(pid: float) -> None:
            self._starting_pid = int(pid)
            if self.stopping.is_set():  # it was asked to end before there was a process
                self._kill_start()

        self._progress_at = time.monotonic()
        start = asyncio.create_task(
            asyncio.to_thread(EngineProcess, self._spec, progress=progress, began=began)
        )
        try:
            while not start.done():
                await asyncio.wait({start}, timeout=1.0)
                silent = time.monotonic() - self._progress_at
                if silent > _START_SILENCE and not start.done():
                    self._kill_start()
            return start.result()
        finally:
            self._starting_pid = 0

    async def _watched(self, engine: EngineProcess) -> RinglineError:
        self.about, self._engine = engine.about, engine
        self._metrics, self._metrics_at = None, 0.0
        self._enter(EngineState(Condition.READY, loaded=1.0))
        self.ready.set()
        ended = asyncio.wrap_future(engine.ended)
        trouble = asyncio.create_task(trouble_of(engine, self._hang))
        try:
            await asyncio.wait((ended, trouble), return_when=asyncio.FIRST_COMPLETED)
            if not ended.done():
                engine.kill(trouble.result())
            return ended.result() if ended.done() else trouble.result()
        finally:
            trouble.cancel()
            self.ready.clear()

    async def _drop(self, cause: RinglineError) -> None:
        """End the process of an engine that is lost; it has nothing to finish."""
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.kill(cause)
            await asyncio.to_thread(engine.close)

    def _kill_start(self) -> None:
        """End a process that is still starting; whoever waits for it is told how it ended."""
        if self._starting_pid:
            with suppress(ProcessLookupError):
                os.kill(self._starting_pid, signal.SIGKILL)

    def _loaded(self, share: float) -> None:
        self._progress_at = time.monotonic()
        if self.state.condition is Condition.STARTING:
            self.state = EngineState(Condition.STARTING, loaded=share)

    def _enter(self, state: EngineState, *, level: str = "info") -> None:
        if self.state.condition is Condition.STOPPING:
            return
        self.state = state
        match state.condition:
            case Condition.STARTING:
                self.tell(level, "the engine is being started")
            case Condition.READY:
                self.tell(level, "the engine is ready")
            case Condition.LOST:
                self.tell(level, f"the engine is lost: {state.why}")
            case Condition.STOPPING:
                self.tell(level, state.why)
