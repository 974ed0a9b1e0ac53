"""Hidden states to other nodes: connections that this session opens, and what goes over them.

A transfer is an ordinary SET_TENSOR and a PEER_BARRIER; a connection is served in order, so the
barrier's reply proves that the data has landed. Nothing about the destination is trusted or
checked here: it applies its own checks. A connection belongs to one transfer at a time and is kept
for the next one, by endpoint and destination session, until this session ends.

Whatever goes wrong with a peer is an ordinary event: the transfer answers False and the client
takes its own path.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence

from ringline import settings
from ringline.errors import CallerError, DeadlineError, NetworkError, PeerError, RefusedError
from ringline.net.connect import connect
from ringline.net.deadline import Deadline
from ringline.net.endpoint import Endpoint
from ringline.net.stream import Stream
from ringline.net.tls import PLAIN, TlsFiles
from ringline.server.limits import MOST_LINKS, SLOWEST
from ringline.server.log import tell
from ringline.server.policy import PeerPolicy
from ringline.wire.commands import BASE_VERSION, EXTENSION_LEVEL, Command
from ringline.wire.extension import ExtHello, ExtHelloReply, PeerBarrier, PeerData, Role
from ringline.wire.frames import (
    ERROR_HEADER,
    ERROR_SIZE,
    MOST_ERROR_TEXT,
    REPLY_HEADER,
    REQUEST_HEADER,
    request_frame,
)
from ringline.wire.messages import Hello, Result, SetTensor

__all__ = ["Peers"]

Bytes = bytes | bytearray | memoryview
_log = logging.getLogger(__name__)
_BARRIER = request_frame(Command.PEER_BARRIER)
_HEAD = REQUEST_HEADER.size
#: data under this ticket are for nobody: a probe sends them.
_NO_TICKET = bytes(16)
#: the level that brought transfers between nodes.
_LEVEL = 3
#: an EXT_HELLO reply describes the node's devices in words; more than this is no description.
_MOST_REPLY = 60_000


class PeerLink:
    """A connection to one session of another node, open and greeted."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @classmethod
    def open(cls, address: Endpoint, session: int, tls: TlsFiles, name: str) -> PeerLink:
        """Connect to a node and name the session to write to.

        Args:
            address: where to.
            session: of the destination node.
            tls: our certificate; PLAIN: no TLS.
            name: what the client calls that host, which its certificate must name.

        Raises:
            NetworkError: it cannot be reached, or is silent.
            PeerError: it speaks another version, is too old, or refuses.
        """
        stream = connect(
            address,
            timeout=settings.CONNECT_TIMEOUT,
            silence=settings.HELLO_TIMEOUT,
            tls=tls,
            name=name,
        )
        link = cls(stream)
        try:
            link._greet(session)
        except BaseException:
            stream.close()
            raise
        stream.silence, stream.slowest = settings.BULK_TIMEOUT, SLOWEST
        return link

    def push(self, record: bytes, data: Bytes) -> None:
        """Write `data` at the beginning of a tensor of the destination, and wait until it is done.

        Raises:
            RefusedError: the destination refused; the connection is still good.
            NetworkError: the connection is lost or silent. PeerError: the answer makes no sense.
        """
        body = SetTensor(record, 0, 0).pack()
        header = REQUEST_HEADER.pack(Command.SET_TENSOR, len(body) + len(data))
        self._stream.send([header, body, data, _BARRIER])
        if Result.unpack(self._reply(PeerBarrier.Reply.LAYOUT.size)).value != 1:
            raise PeerError("PEER_BARRIER was not answered with 1", peer=self._stream.peer)

    def post(self, ticket: bytes, data: Bytes) -> None:
        """Send data under a ticket and do not wait; the destination finds out whose they are.

        Raises:
            NetworkError: the connection is lost, or took nothing for too long.
        """
        self._stream.send(_parcel(ticket, data))

    def try_post(self, ticket: bytes, data: Bytes) -> Sequence[Bytes]:
        """Send as much of a ticket's data as the kernel takes now; returns what is left.

        Raises:
            NetworkError: the connection is lost.
        """
        return self._stream.try_send(_parcel(ticket, data))

    def finish(self, rest: Sequence[Bytes]) -> None:
        """Send what try_post() left over.

        Raises:
            NetworkError: the connection is lost, or took nothing for too long.
        """
        self._stream.send(rest)

    def barrier(self) -> None:
        """Wait until the destination has done all that was sent.

        Raises:
            NetworkError: the connection is lost or silent. PeerError: it refuses.
        """
        self._stream.send([_BARRIER])
        self._reply(PeerBarrier.Reply.LAYOUT.size)

    def alive(self) -> bool:
        """Whether the connection is idle as it should be: closed or talkative ones are useless."""
        return not self._stream.readable(0)

    def close(self) -> None:
        """Close the connection; may be called again."""
        self._stream.close()

    def _greet(self, session: int) -> None:
        deadline = Deadline(settings.HELLO_TIMEOUT)
        stream = self._stream
        stream.send([request_frame(Command.HELLO, Hello().pack())])
        hello = Hello.Reply.unpack(self._reply(Hello.Reply.LAYOUT.size, deadline))
        version = (hello.major, hello.minor, hello.patch)
        if version[:2] != BASE_VERSION[:2]:
            theirs, ours = (".".join(map(str, v)) for v in (version, BASE_VERSION))
            raise PeerError(f"it speaks ggml RPC {theirs}, not {ours}", peer=stream.peer)
        if hello.level < _LEVEL:
            raise PeerError(
                f"its extension level is {hello.level}, a transfer needs {_LEVEL}", peer=stream.peer
            )
        request = ExtHello(EXTENSION_LEVEL, Role.PEER, session=session)
        stream.send([request_frame(Command.EXT_HELLO, request.pack())])
        ExtHelloReply.unpack(self._reply(None, deadline))

    def _reply(self, size: int | None, deadline: Deadline | None = None) -> bytes:
        """Read one reply of `size` bytes (None: any reasonable size), or raise the error in it."""
        stream = self._stream
        (announced,) = REPLY_HEADER.unpack(self._read(REPLY_HEADER.size, deadline))
        if announced == ERROR_SIZE:
            code, length = ERROR_HEADER.unpack(self._read(ERROR_HEADER.size, deadline))
            text = self._read(min(length, MOST_ERROR_TEXT), deadline).decode("utf-8", "replace")
            raise RefusedError(text, peer=stream.peer, code=code)
        if announced > _MOST_REPLY or size not in (None, announced):
            raise PeerError(f"a reply of {announced} bytes makes no sense", peer=stream.peer)
        return self._read(announced, deadline)

    def _read(self, size: int, deadline: Deadline | None) -> bytes:
        """Read; under an absolute deadline byte by byte, so that no trickle can stretch it."""
        if deadline is None:
            return self._stream.read(size)
        parts = []
        for _ in range(size):
            self._stream.silence = max(deadline.left() or 0.0, 0.001)
            parts.append(self._stream.read(1))
        return b"".join(parts)


class Peers:
    """All peer connections of one session."""

    def __init__(
        self,
        policy: PeerPolicy,
        tls: TlsFiles = PLAIN,
        *,
        sent: Callable[[str, int], None] = lambda endpoint, size: None,
    ) -> None:
        """Dial whom `policy` allows, with the certificate `tls`.

        Args:
            policy: whom we may dial.
            tls: our certificate and the ring's CA; PLAIN: no TLS.
            sent: gets an endpoint and bytes of tensors sent there.
        """
        self.sent = sent
        self._policy = policy
        self._tls = tls
        #: guards _idle; never held while the network is used.
        self._lock = threading.Lock()
        self._idle: list[tuple[tuple[str, int], PeerLink]] = []

    def transfer(self, endpoint: str, session: int, record: bytes, data: Bytes) -> bool:
        """Write data into a tensor of another node.

        Args:
            endpoint: where the node is, as the client knows it.
            session: the destination session there.
            record: the destination tensor, as the client gave it.
            data: what to write, from the tensor's beginning.

        Returns:
            False where it could not be done; the reason is in the log.
        """
        try:
            self._transfer(endpoint, session, record, data)
        except (CallerError, NetworkError, PeerError) as error:
            text = "no transfer to %s: %s; the client falls back"
            tell(_log, logging.WARNING, "no_transfer", text, endpoint, error, target=endpoint)
            return False
        self.sent(endpoint, len(data))
        return True

    def probe(self, endpoint: str, session: int, size: int) -> tuple[int, int] | None:
        """Try the way to a session of another node.

        Args:
            endpoint: where the node is, as the client knows it.
            session: the destination session there.
            size: bytes to send, which the destination forgets.

        Returns:
            Nanoseconds of a round trip and bytes a second; None: it does not get through.
        """
        try:
            link = self.open(endpoint, session)
        except (CallerError, NetworkError, PeerError) as error:
            text = "no way to %s: %s; the client takes its own path"
            tell(_log, logging.WARNING, "no_way", text, endpoint, error, target=endpoint)
            return None
        try:
            started = time.perf_counter_ns()
            link.barrier()
            first = time.perf_counter_ns()
            link.post(_NO_TICKET, bytes(size))
            link.barrier()
            took = time.perf_counter_ns() - first
        except (NetworkError, PeerError) as error:
            text = "the way to %s broke: %s; the client takes its own path"
            tell(_log, logging.WARNING, "no_way", text, endpoint, error, target=endpoint)
            return None
        finally:
            link.close()
        return first - started, size * 1_000_000_000 // max(took, 1)

    def close(self) -> None:
        """Close all idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for _, link in idle:
            link.close()

    def _transfer(self, endpoint: str, session: int, record: bytes, data: Bytes) -> None:
        key = (endpoint, session)
        link = self._take(key)
        if link is not None:
            try:
                self._push(key, link, record, data)
            except DeadlineError:
                raise  # it is there, and silent: asking again would only double the wait
            except NetworkError as error:
                # A peer that was restarted since the last transfer: one more try, from scratch.
                text = "the connection to %s was lost (%s), trying a new one"
                tell(_log, logging.INFO, "peer_lost", text, endpoint, error, target=endpoint)
            else:
                return
        self._push(key, self.open(endpoint, session), record, data)

    def _push(self, key: tuple[str, int], link: PeerLink, record: bytes, data: Bytes) -> None:
        """Use a link and keep it for the next transfer, unless it has failed."""
        try:
            link.push(record, data)
        except RefusedError:
            self._keep(key, link)
            raise
        except BaseException:
            link.close()
            raise
        self._keep(key, link)

    def open(self, endpoint: str, session: int) -> PeerLink:
        """A new connection to a session of another node.

        Raises:
            CallerError: the endpoint cannot be read. RefusedError: it may not be dialled.
            NetworkError, PeerError: it cannot be reached, or does not want us.
        """
        target = Endpoint.parse(endpoint)
        addresses = self._policy.allowed(target)
        if not addresses:
            raise RefusedError("this node may not dial that address (see --allow-peer)")
        for address in addresses[:-1]:
            with contextlib.suppress(NetworkError):  # a name may have addresses of both kinds
                return PeerLink.open(address, session, self._tls, target.host)
        return PeerLink.open(addresses[-1], session, self._tls, target.host)

    def _take(self, key: tuple[str, int]) -> PeerLink | None:
        """A kept link that is still good; dead ones are closed."""
        while True:
            with self._lock:
                found = next((entry for entry in self._idle if entry[0] == key), None)
                if found is None:
                    return None
                self._idle.remove(found)
            if found[1].alive():
                return found[1]
            found[1].close()

    def _keep(self, key: tuple[str, int], link: PeerLink) -> None:
        """Keep a link for the next transfer; the one kept longest makes room."""
        surplus = None
        with self._lock:
            self._idle.append((key, link))
            if len(self._idle) > MOST_LINKS:
                _, surplus = self._idle.pop(0)
        if surplus is not None:
            surplus.close()


def _parcel(ticket: bytes, data: Bytes) -> list[Bytes]:
    """A PEER_DATA as parts to send."""
    head = PeerData(ticket, len(data)).pack()
    return [REQUEST_HEADER.pack(Command.PEER_DATA, len(head) + len(data)), head, data]
