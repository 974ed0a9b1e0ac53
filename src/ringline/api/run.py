"""Runs the server until it is asked to end. Exit codes are the command's."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from sse_starlette.sse import AppStatus

from ringline.api.app import make_app
from ringline.api.connections import PatientProtocol
from ringline.api.options import ApiOptions
from ringline.api.origins import ANY
from ringline.api.supervisor import Supervisor
from ringline.errors import CallerError

__all__ = ["run"]

_log = logging.getLogger(__name__)


def run(options: ApiOptions, say: Callable[[str], object]) -> None:
    """Serve until SIGTERM or Ctrl-C; a second one does not wait for requests under way.

    Args:
        options: of the server.
        say: takes lines for people.

    Raises:
        CallerError: the address cannot be used. RinglineError: the engine can never be made.
    """
    if not options.api_keys and not options.loopback:
        say(
            f"WARNING: whoever reaches {options.host} can use this server, since no --api-key is "
            "given"
        )
    if not options.api_keys and ANY in options.origins.allowed:
        say(
            "WARNING: each page that somebody here looks at can use this server, since "
            "--cors-origins is * and no --api-key is given"
        )
    with _listener(options) as listener:
        server = _Server(options, say, listener)
        asyncio.run(server.serve(sockets=[listener]))
        server.settle()


class _Server(uvicorn.Server):
    """uvicorn's server, which tells the supervisor when it is asked to end."""

    def __init__(
        self, options: ApiOptions, say: Callable[[str], object], listener: socket.socket
    ) -> None:
        # Streams are not cut off when the server is asked to end: they have `grace` to finish.
        AppStatus.enable_automatic_graceful_drain = False
        self._say = say
        self._url = _url(listener)
        self._supervisor: Supervisor | None = None
        self._task: asyncio.Task[None] | None = None
        config = uvicorn.Config(
            make_app(options, self._watch),
            http=PatientProtocol,
            lifespan="on",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=max(1, round(options.grace)),
        )
        super().__init__(config)

    def settle(self) -> None:
        """After the end: raise what the engine could not be made for.

        Raises:
            RinglineError: the reason.
        """
        if self._task is not None and self._task.done() and not self._task.cancelled():
            self._task.result()

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until the end; whatever comes of it, no engine is left behind."""
        try:
            await super().serve(sockets)
        finally:
            if self._supervisor is not None:
                self._supervisor.abandon()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Be told of signals by the loop; uvicorn would raise them again in the end."""
        loop = asyncio.get_running_loop()
        signals = (signal.SIGTERM, signal.SIGINT)
        for number in signals:
            loop.add_signal_handler(number, self._asked_to_end)
        try:
            yield
        finally:
            for number in signals:
                loop.remove_signal_handler(number)

    def _asked_to_end(self) -> None:
        if self.should_exit:
            self.force_exit = True
            return
        self._say("ringline: api is ending: requests under way may finish, Ctrl-C does not wait")
        if self._supervisor is not None:
            self._supervisor.stop()
        self.should_exit = True

    def _watch(self, supervisor: Supervisor, task: asyncio.Task[None]) -> None:
        self._supervisor, self._task = supervisor, task
        self._say(f"ringline: api listens on {self._url} and loads the model")
        announcing = asyncio.ensure_future(self._announce(supervisor))

        def ended(task: asyncio.Task[None]) -> None:
            announcing.cancel()
            self.should_exit = True

        task.add_done_callback(ended)

    async def _announce(self, supervisor: Supervisor) -> None:
        await supervisor.ready.wait()
        assert supervisor.about is not None
        self._say(f"{supervisor.about.model}: {supervisor.about.capacity}")
        self._say(f"ringline: api ready on {self._url}")


def _listener(options: ApiOptions) -> socket.socket:
    """A socket that listens.

    Raises:
        CallerError: the address is not of this machine, or is taken.
    """
    try:
        found = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, _, _, _, address = found[0]
        return socket.create_server(address[:2], family=family, backlog=1024)
    except OSError as error:
        reason = error.strerror or str(error)
        raise CallerError(
            f"the server cannot listen on {options.host} port {options.port}: {reason}"
        ) from None


def _url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
