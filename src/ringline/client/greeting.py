"""The first words on a connection: HELLO, and EXT_HELLO where the node speaks the extension."""

from __future__ import annotations

from dataclasses import dataclass, field

from ringline.client.connection import Connection
from ringline.client.counters import Traffic
from ringline.client.stranger import BUSY, TLS, ask, known_by, speaks_plainly
from ringline.errors import DeadlineError, NetworkError, ProtocolError, TlsError
from ringline.net.connect import connect
from ringline.net.endpoint import Endpoint
from ringline.net.stream import Stream
from ringline.net.tls import PLAIN, TlsFiles
from ringline.settings import CONNECT_TIMEOUT, HELLO_TIMEOUT, reply_timeout
from ringline.wire.commands import BASE_VERSION, EXTENSION_LEVEL, Command
from ringline.wire.extension import ExtHello, ExtHelloReply, Role
from ringline.wire.frames import REPLY_HEADER
from ringline.wire.messages import Hello

__all__ = ["Greeting", "attach", "greet"]

_MOST_ABOUT = 60_000
#: seconds after which a server that has not answered HELLO is asked who it is.
_QUICK = 1.0


@dataclass(frozen=True, slots=True)
class Greeting:
    """What a node said of itself.

    Attributes:
        version: its base protocol, major, minor, patch.
        level: the extension level that both ends speak; 0 for a stock server.
        session: our session's id there, 0 for a stock server; `secret` belongs to it.
        features: see wire.extension.Feature.
        about: name, versions and devices in words; empty for a stock server.
    """

    version: tuple[int, int, int]
    level: int = 0
    session: int = 0
    secret: bytes = bytes(16)
    features: int = 0
    about: dict[str, object] = field(default_factory=dict)

    @property
    def version_text(self) -> str:
        """As people write it: 7.0.0."""
        return ".".join(map(str, self.version))


def greet(
    endpoint: Endpoint, traffic: Traffic, tls: TlsFiles = PLAIN
) -> tuple[Connection, Greeting]:
    """Connect to a node and agree on what both speak.

    Raises:
        NetworkError: unreachable, or it does not answer as a ggml RPC server.
        TlsError: one end refuses the other's certificate, or speaks no TLS.
        PeerError: another version, or it refuses us. CallerError: a file of TLS cannot be used.
    """
    stream = _connect(endpoint, tls)
    connection = Connection(stream, traffic=traffic)
    try:
        greeting = _hello(connection, stream, endpoint, tls)
        if greeting.level > 0:
            greeting = _ext_hello(connection, greeting)
    except BaseException:
        connection.close()
        raise
    stream.silence = reply_timeout()
    return connection, greeting


def attach(
    endpoint: Endpoint,
    greeting: Greeting,
    traffic: Traffic,
    tls: TlsFiles = PLAIN,
    *,
    silence: float | None = None,
) -> Connection:
    """Open a further connection to the session that `greeting` tells of.

    Args:
        endpoint: where the node listens.
        greeting: what it said.
        traffic: counts what goes over the connection.
        tls: our certificate and the ring's CA; PLAIN: no TLS.
        silence: seconds to wait for a reply; None: as long as a graph may take.

    Raises:
        NetworkError: unreachable. PeerError: the node refuses, or is another one by now.
    """
    stream = _connect(endpoint, tls)
    connection = Connection(stream, traffic=traffic)
    try:
        _hello(connection, stream, endpoint, tls)
        _ext_hello(connection, greeting, Role.ATTACH)
    except BaseException:
        connection.close()
        raise
    stream.silence = reply_timeout() if silence is None else silence
    return connection


def _connect(endpoint: Endpoint, tls: TlsFiles) -> Stream:
    try:
        return connect(endpoint, timeout=CONNECT_TIMEOUT, silence=HELLO_TIMEOUT, tls=tls)
    except TlsError as error:
        if error.certificate or not speaks_plainly(endpoint):
            raise
        cause = (
            "it does not speak TLS: start it with --tls-cert, --tls-key and --tls-ca, or leave the "
            "--tls flags (and RINGLINE_TLS_CERT) away here"
        )
        raise TlsError(cause, peer=error.peer) from None


def _hello(connection: Connection, stream: Stream, endpoint: Endpoint, tls: TlsFiles) -> Greeting:
    try:
        raw = _hello_reply(connection, stream, None if tls else endpoint)
    except TlsError:
        raise
    except (ProtocolError, NetworkError) as error:
        silent = isinstance(error, DeadlineError)
        cause = f"{error.cause}: {BUSY}" if silent else error.cause
        raise NetworkError(
            f"does not answer like a ggml RPC server ({cause}): check host and port",
            peer=connection.peer,
            command="HELLO",
        ) from None
    reply = Hello.Reply.unpack(raw)
    version = (reply.major, reply.minor, reply.patch)
    ours = ".".join(map(str, BASE_VERSION))
    if reply.major != BASE_VERSION[0] or reply.minor > BASE_VERSION[1]:
        raise ProtocolError(
            f"it speaks ggml RPC {reply.major}.{reply.minor}.{reply.patch}, ringline {ours}: "
            f"run a server from the same llama.cpp version, or ringline serve, on that node",
            peer=connection.peer,
            command="HELLO",
        )
    return Greeting(version, min(reply.level, EXTENSION_LEVEL))


def _hello_reply(connection: Connection, stream: Stream, endpoint: Endpoint | None) -> bytes:
    """Say HELLO and wait for the answer; a stranger is known by its first bytes.

    Args:
        connection: to the node; stream: what it stands on.
        stream: see connection.
        endpoint: where to ask who is silent; None, behind TLS: nobody is asked.

    Raises:
        NetworkError: nothing comes, or somebody else answers. PeerError: it is no reply.
        TlsError: we have no TLS and it speaks nothing else, or it refuses our certificate.
    """
    raw = bytearray(Hello.Reply.LAYOUT.size)
    expected = connection.ask(Command.HELLO, Hello().pack(), target=memoryview(raw))
    connection.flush()
    try:
        first = stream.peek(REPLY_HEADER.size, _QUICK)
    except NetworkError as error:
        if endpoint is None:
            raise
        who = ask(endpoint)  # it closes at once: maybe it says why in its own language
        if who != TLS:
            raise NetworkError(who or error.cause, peer=connection.peer) from None
    else:
        who = known_by(first) if first or endpoint is None else ask(endpoint)
    if who == TLS:
        cause = f"{who}: give --tls-cert, --tls-key and --tls-ca (`ringline certs` makes them)"
        raise TlsError(cause, peer=connection.peer)
    if who:
        raise NetworkError(who, peer=connection.peer)
    connection.replies.wait(expected)
    return bytes(raw)


def _ext_hello(connection: Connection, greeting: Greeting, role: Role = Role.CLIENT) -> Greeting:
    connection.level = greeting.level
    hello = ExtHello(EXTENSION_LEVEL, role, session=greeting.session, secret=greeting.secret)
    raw = connection.call(Command.EXT_HELLO, hello.pack(), size=None, most=_MOST_ABOUT)
    reply = ExtHelloReply.unpack(raw)
    level = min(reply.level, EXTENSION_LEVEL)
    connection.level = level
    return Greeting(
        greeting.version, level, reply.session, reply.secret, reply.features, reply.about
    )
