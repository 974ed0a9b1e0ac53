"""Where a node listens: with TLS or without, and a plain port of loopback beside TLS.

A node without TLS is for this machine alone, unless its operator says --insecure.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
import time
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Final

from ringline.errors import CallerError
from ringline.net.connect import listen
from ringline.net.endpoint import Endpoint
from ringline.net.tls import TlsFiles
from ringline.server.log import tell
from ringline.server.options import ServeOptions
from ringline.server.policy import is_loopback

__all__ = ["Ports"]

_log = logging.getLogger(__name__)
_LOOPBACK: Final = "127.0.0.1"
#: days before a certificate's end from which on a node reminds of it when it starts.
_SOON: Final = 30


@dataclass(frozen=True, slots=True)
class Ports:
    """The listening sockets of a node.

    Attributes:
        endpoint: where it listens, above all.
        plain: the socket without TLS, None: there is none.
        tls: the socket with TLS and what it shows, None: there is none.
        scrapers: the socket of the metrics page, None: there is none.
        about: lines of the banner.
        exposed: whether other machines reach it without TLS.
    """

    endpoint: Endpoint
    plain: socket.socket | None
    tls: tuple[socket.socket, ssl.SSLContext] | None
    scrapers: socket.socket | None = None
    about: tuple[str, ...] = ()
    exposed: bool = False

    @classmethod
    def open(cls, options: ServeOptions, stack: ExitStack) -> Ports:
        """Listen; `stack` closes the sockets.

        Raises:
            CallerError: an address, a certificate or a combination of flags cannot be used.
        """
        ports = cls._with_tls(options, stack) if options.tls else cls._without(options, stack)
        if options.metrics is None:
            return ports
        scrapers = stack.enter_context(closing(listen(options.metrics)))
        about = (*ports.about, f"  metrics    http://{_bound(scrapers)}/metrics")
        return replace(ports, scrapers=scrapers, about=about)

    @classmethod
    def _without(cls, options: ServeOptions, stack: ExitStack) -> Ports:
        if options.plain_port is not None:
            raise CallerError("--plain-port stands beside a port with TLS: see --tls-cert")
        listener = stack.enter_context(closing(listen(options.endpoint)))
        endpoint = _bound(listener)
        exposed = not is_loopback(endpoint.host)
        if exposed and not options.insecure:
            raise CallerError(
                f"other machines reach {endpoint}, and without TLS whoever does can use these "
                "devices and read along: give --tls-cert, --tls-key and --tls-ca (`ringline certs` "
                "makes them), or say --insecure"
            )
        return cls(endpoint, listener, None, exposed=exposed)

    @classmethod
    def _with_tls(cls, options: ServeOptions, stack: ExitStack) -> Ports:
        until = options.tls.check()
        _look_at(options.tls, until)
        context = options.tls.server_context()
        listener = stack.enter_context(closing(listen(options.endpoint)))
        about = [f"  TLS        {options.tls.cert}, until {until}"]
        plain = None
        if options.plain_port is not None:
            beside = Endpoint(_LOOPBACK, options.plain_port)
            plain = stack.enter_context(closing(listen(beside)))
            about.append(f"  plain      {_bound(plain)}, for clients of llama.cpp on this machine")
        return cls(_bound(listener), plain, (listener, context), about=tuple(about))


def _look_at(files: TlsFiles, until: str) -> None:
    """Warn of what works today and is no good all the same."""
    days = (ssl.cert_time_to_seconds(until) - time.time()) / 86400
    if days < _SOON:
        text = "the certificate %s expires in %.0f days: make another one (`ringline certs node`)"
        tell(_log, logging.WARNING, "expires_soon", text, files.cert, days, days=round(days, 1))
    if os.stat(files.key).st_mode & 0o077:
        text = "others on this machine can read the key %s: chmod 600"
        tell(_log, logging.WARNING, "key_readable", text, files.key)


def _bound(listener: socket.socket) -> Endpoint:
    """Where a socket listens; the kernel has chosen the port if it was 0."""
    address = listener.getsockname()
    return Endpoint(address[0], address[1])
