"""llama.cpp's own server over its own RPC servers, as a Service of streams: what people use today.

Its binaries are not part of llama-cpp-python: docs/performance.md tells how to build them from the
source distribution of the same version. Asked over HTTP, whole answers, prompts as tokens; when its
tokens came is worked out from the times that it reports. Seconds.
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ringline.bench.calls import Calls
from ringline.bench.cpu import machine_seconds, tree_seconds
from ringline.bench.programs import HOST, accepts, free_port, healthy, running
from ringline.bench.streams import Figures, Load, Request, run_streams
from ringline.errors import CallerError, NetworkError, PeerError

__all__ = ["Binaries", "LlamaServer", "answer_times", "measure_llama_server"]

_STAGES: Final = 2
_START_SECONDS: Final = 120.0
_ROUND: Final = 256


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where llama.cpp's programs are."""

    llama_server: Path
    rpc_server: Path

    def check(self) -> None:
        """Find out before a measurement begins whether they can be run.

        Raises:
            CallerError: names what cannot be run.
        """
        for path in (self.llama_server, self.rpc_server):
            if not os.access(path, os.X_OK) or path.is_dir():
                raise CallerError(f"{path} is no program that can be run")


def measure_llama_server(
    binaries: Binaries, model: Path, streams: int, load: Load, *, seed: int
) -> Figures:
    """Run closed-loop streams against it, over two stages of one thread each.

    The meters are processors: of each stage, of the server with us who ask it, of everybody.

    Raises:
        RinglineError: a program did not start, or failed.
    """
    n_each = load.n_prompt + load.n_predict
    n_ctx = streams * (-(-n_each // _ROUND)) * _ROUND
    with _running(binaries, model, streams, n_ctx) as (port, pids):

        def meters() -> list[float]:
            *stages, server = map(tree_seconds, pids)
            return [*stages, server + time.process_time(), machine_seconds()]

        service = LlamaServer(port)
        return run_streams(service, streams, load, seed=seed, meters=meters)


class LlamaServer:
    """A running llama-server; one connection for each request under way."""

    live = False

    def __init__(self, port: int) -> None:
        """Ask it which tokens there are.

        Raises:
            NetworkError, PeerError: it does not say.
        """
        models = _get(port, "/v1/models")
        self.n_vocab = int(models["data"][0]["meta"]["n_vocab"])
        self._calls = Calls(port)

    def ask(self, prompt: Sequence[int], n_predict: int, request: Request) -> bool:
        """Ask for a completion and wait for it; as Service.ask."""
        body = {
            "prompt": list(prompt),
            "n_predict": n_predict,
            "ignore_eos": True,
            "temperature": 0.0,
            "cache_prompt": False,
        }

        def exchange(connection: http.client.HTTPConnection) -> list[float]:
            return answer_times(_post(connection, body), n_predict, time.monotonic())

        tokens = self._calls.make(exchange)
        if tokens is None:
            return False
        request.tokens = tokens
        return True

    def stop(self) -> None:
        """Hang up; as Service.stop."""
        self._calls.hang_up()


def answer_times(answer: dict[str, Any], n_predict: int, ended: float) -> list[float]:
    """When the tokens of an answer came: evenly spread over the time that it took to make them.

    Args:
        answer: what the server said; its `timings` tell how long the tokens took.
        n_predict: how many there must be.
        ended: when the answer was here.

    Raises:
        PeerError: it is not what was asked for.
    """
    try:
        count, spent = answer["timings"]["predicted_n"], answer["timings"]["predicted_ms"] / 1e3
    except (KeyError, TypeError):
        raise PeerError(f"llama-server answered {str(answer)[:200]}") from None
    if count != n_predict:
        raise PeerError(f"llama-server gave {count} tokens where {n_predict} were asked for")
    step = spent / max(1, count - 1)
    return [ended - spent + index * step for index in range(count)]


def _post(connection: http.client.HTTPConnection, body: dict[str, Any]) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/completion", json.dumps(body), headers)
    return _answer(connection)


def _get(port: int, path: str) -> dict[str, Any]:
    connection = http.client.HTTPConnection(HOST, port, timeout=_START_SECONDS)
    try:
        connection.request("GET", path)
        return _answer(connection)
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(str(error), peer=f"{HOST}:{port}") from error
    finally:
        connection.close()


def _answer(connection: http.client.HTTPConnection) -> dict[str, Any]:
    response = connection.getresponse()
    text = response.read()
    if response.status != http.client.OK:
        raise PeerError(f"llama-server answered {response.status}: {text[:200]!r}")
    answer: dict[str, Any] = json.loads(text)
    return answer


@contextmanager
def _running(
    binaries: Binaries, model: Path, streams: int, n_ctx: int
) -> Iterator[tuple[int, list[int]]]:
    """RPC servers and a llama-server over them: its port; process ids, its own last."""
    with ExitStack() as stack:
        ports, pids = [free_port() for _ in range(_STAGES)], []
        for port in ports:
            command = [str(binaries.rpc_server), "-H", HOST, "-p", str(port), "-t", "1"]
            ready = functools.partial(accepts, port)
            pids.append(stack.enter_context(running(command, ready)))
        port = free_port()
        command = [str(binaries.llama_server), "-m", str(model), "-ngl", "999", "-t", "1"]
        command += ["--rpc", ",".join(f"{HOST}:{port}" for port in ports)]
        command += ["--host", HOST, "--port", str(port), "--no-webui"]
        command += ["-np", str(streams), "-c", str(n_ctx), "--cache-ram", "0"]
        pids.append(stack.enter_context(running(command, functools.partial(healthy, port))))
        yield port, pids
