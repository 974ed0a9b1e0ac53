"""What `ringline bench serve` compares, as Services of streams: an engine, and an API over one.

Both run an EngineProcess over the same nodes. The one is asked directly, the other over HTTP, every
token as a server-sent event. Seconds.
"""

from __future__ import annotations

import http.client
import json
import math
import re
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ringline.bench.calls import Calls
from ringline.bench.programs import HOST
from ringline.bench.streams import Request as Asked
from ringline.engine.events import Event, Failure, Outcome, Piece
from ringline.engine.job import Request
from ringline.engine.process.client import EngineProcess
from ringline.engine.process.job import RemoteJob
from ringline.errors import EngineError, NetworkError, PeerError
from ringline.llama.sampler import SamplingParams
from ringline.llama.vocabulary import load_vocabulary, vocabulary_header

__all__ = ["ApiService", "BareService", "end_tokens", "engine_steps", "read_steps", "token_times"]

#: for one answer.
_PATIENCE: Final = 600.0
_PIECE: Final = 65536


def end_tokens(model: Path) -> tuple[int, ...]:
    """The tokens that end a text: without them every answer is as long as it was asked for.

    Raises:
        CallerError: the file's vocabulary cannot be used.
    """
    with load_vocabulary(vocabulary_header(model)) as vocabulary:
        return tuple(t for t in range(vocabulary.n_vocab) if vocabulary.is_end(t))


class BareService:
    """An engine in a process of its own, asked directly."""

    live = True

    def __init__(self, engine: EngineProcess, ends: Sequence[int]) -> None:
        self.n_vocab = engine.about.facts.n_vocab
        self._engine = engine
        bias = dict.fromkeys(ends, -math.inf)
        self._sampling = SamplingParams(temperature=0.0, logit_bias=bias)
        # Guards _jobs and _stopped.
        self._lock = threading.Lock()
        self._jobs: set[RemoteJob] = set()
        self._stopped = False

    def ask(self, prompt: Sequence[int], n_predict: int, request: Asked) -> bool:
        """Submit a job and wait for its end; as Service.ask."""
        ended = threading.Event()
        ends: list[Outcome | Failure] = []

        def sink(event: Event) -> None:
            if isinstance(event, Piece):
                request.tokens.extend([time.monotonic()] * len(event.ids))
                return
            ends.append(event)
            ended.set()

        job = self._engine.submit(prompt, Request(n_predict, self._sampling), sink=sink)
        with self._lock:
            self._jobs.add(job)
            if self._stopped:
                job.cancel()
        if not ended.wait(_PATIENCE):
            raise EngineError(f"no end of a request within {_PATIENCE:g} s")
        with self._lock:
            self._jobs.discard(job)
            if self._stopped:
                return False
        if isinstance(ends[0], Failure):
            raise ends[0].error
        if len(request.tokens) != n_predict:
            raise EngineError(f"{len(request.tokens)} tokens came where {n_predict} were asked for")
        return True

    def stop(self) -> None:
        """Cancel all jobs; as Service.stop."""
        with self._lock:
            self._stopped = True
            for job in self._jobs:
                job.cancel()


class ApiService:
    """A `ringline api`, asked for streams of /v1/completions; a connection for each request."""

    # The times of a stream are worked out when it has ended: parsing each event as it comes would
    # cost the one who is measured.
    live = False

    def __init__(self, port: int, n_vocab: int, ends: Sequence[int]) -> None:
        self.n_vocab = n_vocab
        self._bias = [[token, False] for token in ends]
        self._calls = Calls(port)

    def ask(self, prompt: Sequence[int], n_predict: int, request: Asked) -> bool:
        """Ask for a stream and read it to its end; as Service.ask."""
        body = self._body(prompt, n_predict)
        answer = self._calls.make(lambda connection: _read(connection, body))
        if answer is None:
            return False
        request.tokens = token_times(*answer, n_predict)
        return True

    def stop(self) -> None:
        """Hang up, which frees the slots; as Service.stop."""
        self._calls.hang_up()

    def _body(self, prompt: Sequence[int], n_predict: int) -> bytes:
        body = {
            "prompt": list(prompt),
            "max_tokens": n_predict,
            "temperature": 0.0,
            "logit_bias": self._bias,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        return json.dumps(body).encode()


def _read(connection: http.client.HTTPConnection, body: bytes) -> tuple[list[float], bytes]:
    """When each event came, and the JSON of the last one. Reads as little as a client can."""
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != http.client.OK:
        raise PeerError(f"the API answered {response.status}: {response.read()[:200]!r}")
    events: list[float] = []
    last, rest = b"", b""
    while piece := response.read1(_PIECE):
        now = time.monotonic()
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            if line.startswith(b"data: {"):
                events.append(now)
                last = line
    return events, last.removeprefix(b"data: ")


def token_times(events: Sequence[float], last: bytes, n_predict: int) -> list[float]:
    """When the tokens of a stream came.

    A token that ends in half a character has no event of its own, and the last event is the
    usage's: the tokens are spread over the events that there were.

    Args:
        events: when each came.
        last: the JSON of the last one.
        n_predict: how many tokens there must be.

    Raises:
        PeerError: it is not what was asked for.
    """
    try:
        count = json.loads(last)["usage"]["completion_tokens"]
    except (ValueError, KeyError, TypeError):
        raise PeerError(f"the API ended its stream with {last[:200]!r}") from None
    if count != n_predict:
        raise PeerError(f"the API gave {count} tokens where {n_predict} were asked for")
    told = events[:-1] or events
    return [told[index * len(told) // count] for index in range(count)]


def read_steps(port: int) -> tuple[float, float]:
    """Decodes of an API's engine so far, and the seconds in them, from /metrics.

    Raises:
        NetworkError, PeerError: it does not say.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=_PATIENCE)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(str(error), peer=f"{HOST}:{port}") from error
    finally:
        connection.close()
    found = [
        sum(float(value) for value in re.findall(rf"^{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE))
        for name in ("ringline_engine_steps_total", "ringline_engine_step_seconds_total")
    ]
    if not found[0]:
        raise PeerError("the API's /metrics say nothing of the engine's steps")
    return found[0], found[1]


def engine_steps(engine: EngineProcess) -> tuple[float, float]:
    """The same of an engine that is asked directly.

    Raises:
        EngineError: it does not answer.
    """
    groups = engine.metrics().groups
    return sum(group.steps for group in groups), sum(group.busy_seconds for group in groups)
