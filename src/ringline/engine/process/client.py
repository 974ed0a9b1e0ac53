"""The client of an engine's process: starts it, submits jobs, hears of their events.

    with EngineProcess(EngineSpec(model="model.gguf", nodes=("10.0.0.1:50052",))) as engine:
        for piece in engine.submit("Once upon a time", Request(n_predict=48)):
            print(piece.text, end="")

Nothing here loads libllama. Where the process dies, all its jobs fail with an EngineError that says
how it ended; then another one may be started. Times are seconds.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Final, Self, TypeVar, cast

import msgspec

from ringline.engine.events import Failure, Sink
from ringline.engine.job import Request
from ringline.engine.metrics import EngineMetrics
from ringline.engine.process.channel import Channel
from ringline.engine.process.job import RemoteJob, pending
from ringline.engine.process.messages import (
    About,
    Accepted,
    Cancel,
    Done,
    EngineSpec,
    Events,
    Failed,
    FromEngine,
    Loading,
    Lost,
    Open,
    Ready,
    Submit,
)
from ringline.engine.process.questions import (
    Answer,
    AskEmbeddings,
    AskMetrics,
    Embeddings,
    Metrics,
    Question,
    Refused,
)
from ringline.errors import CallerError, EngineError, RinglineError

__all__ = ["EngineProcess"]

T = TypeVar("T")
AnswerT = TypeVar("AnswerT", bound=Answer)

#: for an answer that needs no decoding; the process may be busy with all its threads.
_ANSWER_SECONDS: Final = 30.0
#: how long a process may take to end by itself: its step under way has to be over.
_END_SECONDS: Final = 10.0


class EngineProcess:
    """An engine in a process of its own. A context manager.

    Attributes:
        about: model, stages, capacity.
        ended: gets the reason when the engine takes no more jobs, or its process has ended.
    """

    def __init__(
        self,
        spec: EngineSpec,
        *,
        progress: Callable[[float], object] | None = None,
        began: Callable[[int], object] | None = None,
    ) -> None:
        """Start the process and wait until its engine is ready.

        Args:
            spec: which engine.
            progress: gets the loaded share of the model, 0 to 1.
            began: gets the number of the process, as soon as there is one.

        Raises:
            RinglineError: why the engine could not be made, or how its process ended.
        """
        # Guards _jobs, _questions and _lost.
        self._lock = threading.Lock()
        self._jobs: dict[int, RemoteJob] = {}
        self._questions: dict[int, Future[Answer]] = {}
        self._lost: RinglineError | None = None
        self.ended: Future[RinglineError] = pending()
        self._numbers = itertools.count()
        self._process, end = _start()
        self._channel = Channel(end, msgspec.msgpack.Decoder[FromEngine](FromEngine))
        self._reader = threading.Thread(target=self._read, name="engine-client", daemon=True)
        try:
            (began or _ignore)(self.pid)
            self._channel.send(Open(spec))
            self.about = self._ready(progress or _ignore)
        except BaseException:
            self._end()
            raise
        self._reader.start()

    def submit(
        self,
        prompt: str | Sequence[int],
        request: Request | None = None,
        *,
        sink: Sink | None = None,
    ) -> RemoteJob:
        """Take a prompt in.

        Args:
            prompt: text, in which the names of control tokens are understood, or tokens.
            request: what is wanted; None: greedy, until the text ends or the context is full.
            sink: takes the job's events, on a thread of the client; it must be quick, never raise.

        Raises:
            CallerError: the prompt or the request cannot be used. BusyError: the queue is full.
            RinglineError: why the engine has ended.
        """
        job = self.begin(prompt, request, sink=sink)
        _answer(job.accepted)
        return job

    def begin(
        self,
        prompt: str | Sequence[int],
        request: Request | None = None,
        *,
        sink: Sink | None = None,
    ) -> RemoteJob:
        """As submit(), without waiting: `accepted` of the job says whether it was taken in.

        Raises:
            CallerError: a number is too large. RinglineError: why the engine has ended.
        """
        job = RemoteJob(next(self._numbers), sink, self._cancel)
        tokens = prompt if isinstance(prompt, str) else tuple(prompt)
        with self._lock:
            self._check()
            self._jobs[job.number] = job
        try:
            self._channel.send(Submit(job.number, tokens, request or Request()))
        except CallerError:
            self._forget(job.number)
            raise
        return job

    def metrics(self) -> EngineMetrics:
        """What the engine has done so far, and does now.

        Raises:
            EngineError: its process has ended, or does not answer.
        """
        return _answer(self.ask(AskMetrics, Metrics)).metrics

    def embed(
        self, inputs: Sequence[str | Sequence[int]], *, normalize: bool = True
    ) -> Future[Embeddings]:
        """Ask for the vectors of texts, without waiting; see Engine.embed. cancel() gives it up.

        Raises:
            RinglineError: why the engine has ended.
        """
        texts = tuple(text if isinstance(text, str) else tuple(text) for text in inputs)
        return self.ask(lambda number: AskEmbeddings(number, texts, normalize), Embeddings)

    def cancel(self, answer: Future[AnswerT]) -> None:
        """Nobody waits for an answer of ask() any more: it fails, if it takes long to compute."""
        with self._lock:
            numbers = [n for n, waiting in self._questions.items() if waiting is answer]
        for number in numbers:
            self._cancel(number)

    def ask(self, make: Callable[[int], Question], kind: type[AnswerT]) -> Future[AnswerT]:
        """Ask something, without waiting; the future may get any RinglineError.

        Args:
            make: makes the question from its number.
            kind: what the answer is.

        Raises:
            RinglineError: why the engine has ended.
        """
        number = next(self._numbers)
        answer: Future[Answer] = pending()
        with self._lock:
            self._check()
            self._questions[number] = answer
        try:
            self._channel.send(make(number))
        except CallerError:
            with self._lock:
                del self._questions[number]
            raise
        return cast("Future[AnswerT]", answer)

    def kill(self, cause: RinglineError) -> None:
        """End the process at once, because it hangs; its jobs fail. close() is still due.

        Args:
            cause: what its jobs are told.
        """
        self._lose(cause)
        self._process.kill()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def close(self) -> None:
        """End the process; jobs that have not ended fail. May be called again, never raises."""
        self._end()
        self._reader.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _check(self) -> None:
        if self._lost is not None:
            raise self._lost

    def _cancel(self, number: int) -> None:
        self._channel.send(Cancel(number))

    def _ready(self, progress: Callable[[float], object]) -> About:
        while (message := self._channel.receive()) is not None:
            match message:
                case Loading(share):
                    progress(share)
                case Ready(about):
                    return about
                case Failed(_, facts):
                    raise facts.error()
        raise EngineError(f"the engine's process {self._death()} before it was ready")

    def _read(self) -> None:
        """Pass on what the engine tells, until it tells no more."""
        with contextlib.suppress(EngineError):  # it speaks nonsense: as good as dead
            while (message := self._channel.receive()) is not None:
                self._take(message)
        self._fail_all()

    def _take(self, message: FromEngine) -> None:
        match message:
            case Events(texts, ends):
                for number, piece in texts:
                    self._jobs[number].tell(piece)
                for end in ends:
                    self._end_job(end)
            case Accepted(number):
                if number in self._jobs:
                    self._jobs[number].accept()
            case Failed():
                self._end_job(message)
            case Lost(facts):
                self._lose(facts.error())
            case Loading() | Ready():
                raise EngineError("the engine's process says twice that it is ready")
            case _:
                self._take_answer(message)

    def _take_answer(self, message: Answer) -> None:
        with self._lock:
            answer = self._questions.pop(message.question)
        if isinstance(message, Refused):
            answer.set_exception(message.facts.error())
        else:
            answer.set_result(message)

    def _end_job(self, end: Done | Failed) -> None:
        job = self._forget(end.job)
        job.tell(end.outcome if isinstance(end, Done) else Failure(end.facts.error()))

    def _forget(self, number: int) -> RemoteJob:
        with self._lock:
            return self._jobs.pop(number)

    def _fail_all(self) -> None:
        error = self._lose(EngineError(f"the engine's process {self._death()}"))
        with self._lock:
            jobs, self._jobs = self._jobs, {}
            questions, self._questions = self._questions, {}
        for job in jobs.values():
            job.tell(Failure(error))
        for answer in questions.values():
            answer.set_exception(error)

    def _lose(self, error: RinglineError) -> RinglineError:
        """Take no more jobs; the first reason stays."""
        with self._lock:
            first = self._lost is None
            self._lost = self._lost or error
        if first:
            self.ended.set_result(error)
        return self._lost

    def _death(self) -> str:
        """How the process ended, in words; the socket may close a moment before."""
        try:
            code = self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            return "closed its socket"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return "was closed" if code == 0 else f"ended with exit code {code}"

    def _end(self) -> None:
        """The process ends with the socket; if it does not, it is killed."""
        self._channel.close()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _start() -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start a process that has the other end of a socket, which nobody else can connect to."""
    ours, theirs = socket.socketpair()
    command = [sys.executable, "-m", "ringline.engine.process", str(theirs.fileno())]
    # OpenBLAS would start a thread per core that nobody uses.
    environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}
    with theirs:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            env=environment,
            start_new_session=True,  # Ctrl-C is for us; the process ends with the socket
        )
    return process, ours


def _answer(future: Future[T]) -> T:
    try:
        return future.result(_ANSWER_SECONDS)
    except TimeoutError:
        raise EngineError(f"the engine did not answer within {_ANSWER_SECONDS:g} s") from None


def _ignore(number: float) -> None:
    """What nobody wants to know."""
