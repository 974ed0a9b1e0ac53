"""What listens on a port that does not answer HELLO: told by its first bytes.

Most servers give themselves away in what they say to our HELLO, which makes no sense to them. Some
say nothing: an HTTP server that waits for the end of a line, a TLS server that waits for the rest
of a record. They are asked over a second connection, in words of their own: a stock server that is
busy with another client is silent too, and must not find more than HELLO in its stream. Times are
seconds.
"""

from __future__ import annotations

import contextlib
import ssl
from collections.abc import Callable
from typing import Final

from ringline.errors import NetworkError
from ringline.net.connect import connect
from ringline.net.endpoint import Endpoint
from ringline.wire.commands import Command
from ringline.wire.frames import REPLY_HEADER, request_frame
from ringline.wire.messages import Hello

__all__ = ["BUSY", "TLS", "ask", "known_by", "speaks_plainly"]

#: a stranger has so long to answer in its own language.
_PATIENCE: Final = 1.0
_MOST: Final = 64
#: what a silent one may be.
BUSY: Final = (
    "it takes connections and says nothing; a stock server does so while it serves another client"
)
TLS: Final = "it speaks TLS"
_TLS_RECORDS: Final = (0x15, 0x16)  # alert, handshake


def known_by(first: bytes) -> str:
    """Who speaks like this, in words; "" where the bytes may be a reply to HELLO."""
    if first.startswith((b"HTTP/", b"<!DOC", b"<html", b"<HTML")):
        return "it is an HTTP server"
    if len(first) >= 2 and first[0] in _TLS_RECORDS and first[1] == 3:
        return TLS
    if first.startswith(b"SSH-"):
        return "it is an SSH server"
    text = first.split(b"\r")[0].split(b"\n")[0]
    if len(text) >= 3 and all(32 <= byte < 127 for byte in text):
        return f"it says {text.decode()!r}"
    return ""


def ask(endpoint: Endpoint) -> str:
    """Ask a silent server who it is, over connections of our own; "" where it stays silent."""
    for words in (_http_request, _client_hello):
        first = _answer_to(endpoint, words)
        if known_by(first):
            return known_by(first)
    return ""


def speaks_plainly(endpoint: Endpoint) -> bool:
    """Whether a server that does not speak TLS answers HELLO, over a connection of our own."""
    header = REPLY_HEADER.pack(Hello.Reply.LAYOUT.size)
    return _answer_to(endpoint, _plain_hello).startswith(header)


def _answer_to(endpoint: Endpoint, words: Callable[[Endpoint], bytes]) -> bytes:
    """The first bytes of an answer, b"" where none comes."""
    with contextlib.suppress(NetworkError):
        stream = connect(endpoint, timeout=_PATIENCE, silence=_PATIENCE)
        try:
            stream.send([words(endpoint)])
            return stream.peek(_MOST, _PATIENCE)
        finally:
            stream.close()
    return b""


def _http_request(endpoint: Endpoint) -> bytes:
    return f"GET / HTTP/1.0\r\nHost: {endpoint}\r\n\r\n".encode("ascii", "replace")


def _plain_hello(_: Endpoint) -> bytes:
    return request_frame(Command.HELLO, Hello().pack())


def _client_hello(_: Endpoint) -> bytes:
    """How a TLS client begins; nothing of the answer is trusted, so nothing is verified."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    handshake = context.wrap_bio(incoming, outgoing, server_side=False)
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    return outgoing.read()
