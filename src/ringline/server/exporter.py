"""The process that serves a node's metrics: the gatekeeper neither collects nor waits for anybody.

It is forked before the first session and reads memory that it shares with the gatekeeper and all
sessions (ledger.py). A slow scraper holds one of its threads, whose number is bounded. It ends with
the gatekeeper: when the pipe to it ends.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Final, NoReturn

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
#: an exporter that ends sooner than this is not started again: it would only end again.
_STEADY: Final = 10.0


class Exporter:
    """The exporter as the gatekeeper sees it.

    Args:
        listener: the listening socket for scrapers, ours to close.
        node: what the metrics describe.
        ledger: the counts.
    """

    def __init__(self, listener: socket.socket, node: Node, ledger: Ledger) -> None:
        self._listener = listener
        self._node = node
        self._ledger = ledger
        self._end = -1
        self._pid = 0
        self._born = 0.0
        self.pidfd = -1

    def start(self, forget: Callable[[], None]) -> None:
        """Fork it.

        Args:
            forget: closes, in the child, what belongs to the gatekeeper.

        Raises:
            OSError: the system gives no more processes or descriptors.
        """
        theirs, self._end = os.pipe()
        # Until the child has its own handlers, a signal for it would run ours and be lost.
        former = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        try:
            self._pid = os.fork()
            if self._pid == 0:
                os.close(self._end)
                _become_exporter(self._listener, self._node, self._ledger, theirs, forget)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former)
            os.close(theirs)
        self.pidfd = os.pidfd_open(self._pid)
        self._born = time.monotonic()

    def ended(self) -> bool:
        """Reap it; whether it may be started again."""
        os.waitpid(self._pid, 0)
        self.close_process()
        steady = time.monotonic() - self._born > _STEADY
        what = "starting another one" if steady else "there are no metrics until a restart"
        text = f"the process that serves the metrics has ended: {what}"
        tell(_log, logging.WARNING, "no_exporter", text)
        return steady

    def close_process(self) -> None:
        """Close what the gatekeeper has of the process, which ends then; may be called again."""
        for descriptor in (self._end, self.pidfd):
            if descriptor >= 0:
                os.close(descriptor)
        self._end = self.pidfd = -1

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
