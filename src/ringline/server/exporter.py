"""The process that serves a node's metrics: the gatekeeper neither collects nor waits for anybody.

It is forked before the first session and reads memory that it shares with the gatekeeper and all
sessions (ledger.py). A slow scraper holds one of its threads, whose number is bounded. It ends with
the gatekeeper: when the pipe to it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Final, NoReturn

from ringline.net.deadline import Deadline
from ringline.server.context import Node
from ringline.server.ledger import Ledger
from ringline.server.log import speak_as, tell
from ringline.server.settling import STOP_SIGNALS, settle_in

__all__ = ["Exporter"]

_log = logging.getLogger(__name__)
#: scrapes at once; more are turned away.
_MOST_SCRAPES: Final = 8
#: seconds that a scraper has for each line of its request, and to take the answer.
_PATIENCE: Final = 10.0
#: an exporter that has lived so long is replaced at once; one that ends sooner after a pause, which
#: doubles each time up to a bound: it might only end again.
_STEADY: Final = 10.0
_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 60.0


class Exporter:
    """The exporter as the gatekeeper sees it.

    Args:
        listener: the listening socket for scrapers, ours to close.
        node: what the metrics describe.
        ledger: the counts.
        selector: the gatekeeper's; its keys carry the function to call.
        forget: closes, in the child, what belongs to the gatekeeper.
    """

    def __init__(
        self,
        listener: socket.socket,
        node: Node,
        ledger: Ledger,
        selector: selectors.BaseSelector,
        forget: Callable[[], None],
    ) -> None:
        self._listener = listener
        self._node = node
        self._ledger = ledger
        self._selector = selector
        self._forget = forget
        self._end = self._pidfd = -1
        self._pid = 0
        self._born = 0.0
        self._pause = 0.0
        self._again = Deadline(0.0)

    def patience(self) -> float | None:
        """Seconds until it may be started; None where it runs."""
        return None if self._pidfd >= 0 else self._again.left()

    def keep(self) -> None:
        """Start it where there is none and the pause is over."""
        if self._pidfd >= 0 or not self._again.passed():
            return
        try:
            self._start()
        except OSError as error:
            text = "cannot serve metrics (%s); trying again in %g s"
            self._rest()
            args = (error, self._pause)
            tell(_log, logging.WARNING, "no_exporter", text, *args, errno=error.errno)

    def _start(self) -> None:
        theirs, self._end = os.pipe()
        # Until the child has its own handlers, a signal for it would run ours and be lost.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._end)
                _become_exporter(self._listener, self._node, self._ledger, theirs, self._forget)
        except BaseException:
            os.close(self._end)
            self._end = -1
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
            os.close(theirs)
        self._pidfd = os.pidfd_open(self._pid)
        self._born = time.monotonic()
        self._selector.register(self._pidfd, selectors.EVENT_READ, self._ended)

    def _ended(self) -> None:
        """Reap it; keep() starts another one."""
        self._selector.unregister(self._pidfd)
        _, status = os.waitpid(self._pid, 0)
        self.close_process()
        if time.monotonic() - self._born > _STEADY:
            self._pause = 0.0
        else:
            self._rest()
        code = os.waitstatus_to_exitcode(status)
        text = "the process that serves the metrics (pid %d) ended with code %d, the next in %g s"
        args = (self._pid, code, self._pause)
        tell(_log, logging.WARNING, "no_exporter", text, *args, code=code, seconds=self._pause)

    def _rest(self) -> None:
        self._pause = min(max(_FIRST_PAUSE, 2 * self._pause), _LONGEST_PAUSE)
        self._again = Deadline(self._pause)

    def close_process(self) -> None:
        """Close what the gatekeeper has of the process, which ends then; may be called again."""
        for descriptor in (self._end, self._pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._end = self._pidfd = -1

    def close(self) -> None:
        """The same, and the socket: a fork calls it too."""
        self.close_process()
        self._listener.close()


class _Server(ThreadingHTTPServer):
    """Takes over a listening socket; a bounded number of requests at once."""

    daemon_threads = True

    def __init__(self, listener: socket.socket, handler: type) -> None:
        super().__init__(listener.getsockname()[:2], handler, bind_and_activate=False)
        self.socket.close()
        listener.setblocking(True)
        self.socket = listener
        self._room = threading.BoundedSemaphore(_MOST_SCRAPES)

    def process_request(self, request: object, client_address: object) -> None:
        """Give a request a thread, where there is room."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)  # type: ignore[arg-type]
            return
        super().process_request(request, client_address)  # type: ignore[arg-type]

    def process_request_thread(self, request: object, client_address: object) -> None:
        """The life of a request's thread."""
        try:
            super().process_request_thread(request, client_address)  # type: ignore[arg-type]
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A scraper that leaves or says nothing is an ordinary event."""
        _log.debug("a scrape failed", exc_info=True)


def _become_exporter(
    listener: socket.socket,
    node: Node,
    ledger: Ledger,
    end: int,
    forget: Callable[[], None],
) -> NoReturn:
    code = 1
    try:
        forget()
        settle_in()
        speak_as("ringline serve [metrics]")
        _serve(listener, node, ledger)
        with contextlib.suppress(OSError):
            os.read(end, 1)  # ends with the gatekeeper
        code = 0
    except BaseException:
        _log.exception("the process that serves the metrics fails")
    finally:
        logging.shutdown()
        os._exit(code)


def _serve(listener: socket.socket, node: Node, ledger: Ledger) -> None:
    """Begin to answer scrapers."""
    # Here, and not in the gatekeeper: sessions would carry it along.
    from prometheus_client import CollectorRegistry, MetricsHandler

    from ringline.server.exposition import NodeMetrics

    registry = CollectorRegistry()
    registry.register(NodeMetrics(node, ledger.counts))
    handler = MetricsHandler.factory(registry)
    handler.timeout = _PATIENCE  # type: ignore[attr-defined]
    server = _Server(listener, handler)
    threading.Thread(target=server.serve_forever, name="metrics", daemon=True).start()
