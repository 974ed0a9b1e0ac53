"""One connection to a node: commands queue up, are flushed together, replies come in order.

Commands without a reply are only queued; the queue goes out in one piece where a reply is needed,
at flush(), or when it has grown. Reads may be queued too (expect into memory, drain() waits).
After the first failure the connection is broken for good: every call raises that same error.

Several threads may use one connection (all contexts share the one that a stock server serves). Each
thread's commands keep their order, and each waits for its own replies only.

Locks, taken in this order:
    _sending   who sends: what is taken out of the queue first, leaves first; held while sending
    lock       queue, expected replies, numbers, stored graphs; never held across I/O
"""

from __future__ import annotations

import logging
import threading

from ringline.client.counters import Traffic
from ringline.client.outbox import Outbox
from ringline.client.replies import Expected, Replies
from ringline.errors import DeadlineError, NetworkError, ProtocolError, RemoteError
from ringline.net.stream import Stream
from ringline.settings import debug_level
from ringline.wire.commands import Command
from ringline.wire.thin import Encoder

__all__ = ["BULK", "Connection"]

_log = logging.getLogger(__name__)

#: a queue of this many bytes is sent at once: the node may begin, and memory stays bounded.
_MOST_QUEUED = 1 << 20
#: a part of this size is not copied into the queue but sent from where it lies.
BULK = 64 * 1024

Bytes = bytes | bytearray | memoryview


class Connection:
    """The commands of one client to one node. `level` is what both ends speak, 0 for stock.

    `graphs` says which graph the node has stored for each device: the node keeps it per connection.
    """

    def __init__(self, stream: Stream, *, traffic: Traffic) -> None:
        self.peer = stream.peer
        self.lock = threading.RLock()
        self.graphs: dict[int, tuple[int, int]] = {}
        self._level = 0
        self._stream = stream
        self._traffic = traffic
        self._sending = threading.Lock()
        self._outbox = Outbox(traffic)
        self._since: list[str] = []  # names of the commands not known to be done
        self._sent = self._done = 0  # numbers of the last command sent, and known to be done
        self._to_drain: list[Expected] = []  # what expect() promised; errors come out of drain()
        self._error: RemoteError | None = None
        self._debug = debug_level()
        self.replies = Replies(stream, self.lock, finish=self._finish, lost=self._broken)

    @property
    def level(self) -> int:
        """The extension level of this connection."""
        return self._level

    @level.setter
    def level(self, level: int) -> None:
        self._level = level
        self.replies.extended = level > 0

    @property
    def gathers_graphs(self) -> bool:
        """Whether a graph may wait for what follows: steps are encoded and no other one waits."""
        return self._outbox.encoder is not None and self._outbox.graphs <= 1

    def encode_steps(self) -> None:
        """From here on, what the codec of level 5 accepts goes as STEP."""
        self._outbox.encoder = Encoder()

    @property
    def dirty(self) -> bool:
        """Whether a command may not have been executed yet: something came after the last reply."""
        return self._sent > self._done

    @property
    def error(self) -> RemoteError | None:
        """Why it is broken; None while it is well."""
        return self._error

    def post(self, command: Command, *parts: Bytes) -> None:
        """Queue a command without reply; one of 64 KiB and more is sent before this returns.

        Raises:
            NetworkError, PeerError: the connection is or gets broken.
        """
        with self.lock:
            self._check()
            size = self._add(command, parts)
        if size >= BULK or self._outbox.size >= _MOST_QUEUED:
            self.flush()

    def queue(self, command: Command, *parts: Bytes) -> None:
        """Queue a command without reply and send nothing; may be called while holding `lock`.

        Raises:
            NetworkError, PeerError: the connection is broken.
        """
        with self.lock:
            self._check()
            self._add(command, parts)

    def call(self, command: Command, *parts: Bytes, size: int | None, most: int = 0) -> bytes:
        """Send a command and wait for its reply.

        Args:
            command: which.
            parts: the body.
            size: bytes of the reply, header excluded; None: any size up to `most`.
            most: see size.

        Raises:
            RefusedError: the node said no and why. NetworkError, PeerError: the connection broke.
        """
        expected = self._ask(command, parts, size, None, most)
        self.flush()
        self.replies.wait(expected)
        return expected.body

    def read(self, command: Command, *parts: Bytes, target: memoryview) -> None:
        """Send a command whose reply fills `target`, and wait for it.

        Raises:
            RefusedError, NetworkError, PeerError: as call().
        """
        expected = self.ask(command, *parts, target=target)
        self.flush()
        self.replies.wait(expected)

    def ask(self, command: Command, *parts: Bytes, target: memoryview) -> Expected:
        """Queue a command whose reply will fill `target`; the caller waits for what is returned.

        Raises:
            NetworkError, PeerError: the connection is broken.
        """
        return self._ask(command, parts, len(target), target)

    def expect(self, command: Command, *parts: Bytes, target: memoryview) -> None:
        """Queue a command whose reply will fill `target`; this thread's drain() waits for it.

        Raises:
            NetworkError, PeerError: the connection is broken.
        """
        with self.lock:
            self._to_drain.append(self._ask(command, parts, len(target), target))

    def flush(self) -> None:
        """Send what is queued.

        Raises:
            NetworkError, PeerError: the connection is or gets broken.
        """
        with self._sending:
            with self.lock:
                self._check()
                entries = self._outbox.take()
                # While replies are on their way we must go on reading: a node that is stuck in
                # sending one reads nothing, and both ends would wait for each other.
                reader = self.replies.take_some if self.replies.queue else None
            if not entries:
                return
            try:
                self._stream.send(self._outbox.frames(entries), reader)
            except NetworkError as error:
                raise self._broken(error) from None
            except BaseException:  # half a message may have been sent
                self._broken(NetworkError("sending to it was interrupted", peer=self.peer))
                raise

    def drain(self) -> None:
        """Send what is queued and wait for all replies on their way to this thread.

        Raises:
            RefusedError, NetworkError, PeerError: as call().
        """
        if not self._outbox and not self._to_drain:  # libllama asks a dozen times a step
            self._check()
            return
        self.flush()
        me = threading.get_ident()
        with self.lock:
            mine = [expected for expected in self._to_drain if expected.owner == me]
            self._to_drain = [expected for expected in self._to_drain if expected.owner != me]
        failure: RemoteError | None = None
        for expected in mine:
            try:
                self.replies.wait(expected)
            except RemoteError as error:
                failure = failure or error
        if failure is not None:
            raise failure

    def alive(self) -> bool:
        """Whether the node is still there; asked while nothing is expected from it."""
        with self.lock:  # while we look nobody may begin to wait for a reply
            if self._error is not None or self.replies.queue:
                return self._error is None
            return not self._stream.readable(0)

    def close(self) -> None:
        """Send what is queued if that is possible, and close; may be called again."""
        if self._error is None:
            try:
                self.flush()
            except RemoteError as error:
                _log.debug("closing: %s", error)
        with self.lock:
            self._error = self._error or NetworkError("closed by us", peer=self.peer)
            self.replies.fail_all(self._error)
        self._stream.close()

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _ask(
        self,
        command: Command,
        parts: tuple[Bytes, ...],
        size: int | None,
        target: memoryview | None,
        most: int = 0,
    ) -> Expected:
        with self.lock:
            self._check()
            self._add(command, parts)
            expected = Expected(command, self._sent, size, target, most)
            self.replies.queue.append(expected)
            return expected

    def _add(self, command: Command, parts: tuple[Bytes, ...]) -> int:
        """Queue a request; the bytes of its body."""
        size = self._outbox.add(command, parts)
        self._since.append(command.name)
        self._sent += 1
        if self._debug:
            _log.debug("%s <- %s %d bytes", self.peer, command.name, size)
        return size

    def _finish(self, head: Expected, size: int) -> None:
        """A reply proves that all commands up to its own have been executed, in order."""
        self._traffic.received(size)
        if head.error is not None:
            head.error.since = tuple(self._since[: head.number - self._done - 1])
            # Commands without reply may have been dropped, graphs among them.
            self.graphs.clear()
        del self._since[: head.number - self._done]
        self._done = head.number

    def _broken(self, error: RemoteError) -> RemoteError:
        """Make an error say what was under way, and keep it."""
        with self.lock:
            if self._error is None:
                queue = self.replies.queue
                # What is waited for, or else what was to be sent.
                last = self._since[-1] if self._since else None
                waiting = queue[0].command.name if queue else last
                self._error = self._named(error, error.command or waiting)
                self._outbox.take()
                self.replies.fail_all(self._error)
            return self._error

    def _named(self, error: RemoteError, command: str | None) -> RemoteError:
        if error.peer not in ("", self.peer):
            return error  # another node's: found gone while this one was waited for
        peer, cause, since = self.peer, error.cause, self._since[:]
        if isinstance(error, DeadlineError):
            seconds = error.seconds
            return DeadlineError(cause, peer=peer, seconds=seconds, command=command, since=since)
        if isinstance(error, NetworkError):
            return NetworkError(cause, peer=peer, command=command, since=since)
        return ProtocolError(cause, peer=peer, command=command, since=since)
