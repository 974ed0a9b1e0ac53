"""One connection of a session: a thread that reads requests, calls handlers and sends replies.

Requests are served strictly in order. What a refused request means depends on who asked:

- a stock client (level 0) gets the reply's own "no" where there is one; otherwise the reason goes
  to the log and the connection ends, as the stock server does;
- an extended client gets an error frame in the place of the reply. A refused command without a
  reply is remembered: commands without a reply are dropped from then on, because they may build on
  it, and the next command with a reply is answered with the error. Then all goes on. Commands that
  build on nothing are done in any case: FREE_BUFFER, SAMPLER_NEW, SAMPLER_FREE.

Bytes that are no request end the connection, after an error frame where it is extended.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from typing import Final

from ringline import settings
from ringline.errors import LibraryError, NetworkError, ProtocolError, RefusedError, TransferError
from ringline.net.deadline import Deadline
from ringline.net.stream import Closed, Stream
from ringline.server.actions import Action, actions_for
from ringline.server.context import Context
from ringline.server.handlers.tensors import set_tensor
from ringline.server.handover import Handover
from ringline.server.limits import FAREWELL_TIMEOUT, SLOWEST
from ringline.server.log import tell
from ringline.server.tally import Counter, rule_of
from ringline.wire.commands import Command
from ringline.wire.extension import COUNT, LENGTH, PeerData, Role
from ringline.wire.frames import (
    REPLY_HEADER,
    REQUEST_HEADER,
    ErrorCode,
    check_request,
    error_frame,
)
from ringline.wire.messages import Message, SetTensor
from ringline.wire.thin import Decoder

__all__ = ["Connection"]

_log = logging.getLogger(__name__)
_HEADER: Final = REQUEST_HEADER.size
_SET_HEAD: Final = SetTensor.LAYOUT.size
#: a body up to this size comes out of the stream's own buffer.
_SMALL: Final = 64 * 1024
#: done even while an error waits to be told.
_ALWAYS_DONE: Final = frozenset({Command.FREE_BUFFER, Command.SAMPLER_NEW, Command.SAMPLER_FREE})

Bytes = bytes | bytearray | memoryview


class Connection:
    """Serves one socket until it ends.

    Attributes:
        idle_since: when the last request was done (monotonic); None while one is served.
    """

    def __init__(self, sock: socket.socket, handover: Handover, context: Context) -> None:
        self._stream = Stream(sock, peer=handover.client, silence=settings.BULK_TIMEOUT)
        self._stream.slowest = SLOWEST
        self.idle_since: float | None = time.monotonic()
        self._socket = sock
        self._level = handover.level
        self._role = handover.role
        self._context = context
        self._from_client = handover.role is not Role.PEER
        self._origin = handover.client.rpartition(":")[0]  # its port is another one each time
        self._actions = actions_for(handover.role, handover.level)
        self._kept: tuple[str, int] | None = None
        self._decoder: Decoder | None = None
        context.gone = self._stream.hung_up
        self._debug = settings.debug_level()

    def serve(self, greet: Callable[[], bytes] | None) -> None:
        """Serve requests until the connection ends.

        Args:
            greet: makes the reply to EXT_HELLO, which is sent first; None for a stock client.
        """
        try:
            if greet is not None:
                self._stream.send([greet()])
            while True:
                self._serve_one()
        except Closed as error:
            if not error.clean:
                self._warn("connection_cut", "the connection ended inside a message")
        except RefusedError as error:
            self._warn("refused_closing", f"refused, closing: {error}")
        except ProtocolError as error:
            self._warn("not_a_request", f"not a request, closing: {error}")
            self._say_farewell(error)
        except NetworkError as error:
            self._warn("connection_lost", f"closing: {error.cause}")
        except Exception:
            _log.exception("%s: closing after an error of ours", self._stream.peer)
        finally:
            self._stream.close()
            self._context.close()

    def turn_away(self, reason: str) -> None:
        """Answer EXT_HELLO with an error and close."""
        self._warn("turned_away", f"turned away: {reason}")
        self._say_farewell(RefusedError(reason))
        self._stream.close()

    def deserted(self) -> bool:
        """Whether its client has left while a request of it is served; any thread may ask."""
        return self.idle_since is None and self._stream.hung_up()

    def dismiss(self, reason: str) -> None:
        """Say to a silent client why its session ends; any thread may, nobody waits for it."""
        if self._level > 0 and self.idle_since is not None:
            with contextlib.suppress(NetworkError):
                self._stream.try_send([error_frame(ErrorCode.REFUSED, reason)])

    def _warn(self, event: str, text: str, **facts: object) -> None:
        peer, role = self._stream.peer, self._role.name.lower()
        facts = {"peer": peer, "role": role, **facts}
        tell(_log, logging.WARNING, event, "%s: %s", peer, text, **facts)

    def _serve_one(self) -> None:
        number, size = REQUEST_HEADER.unpack(self._stream.read(_HEADER, idle=True))
        self.idle_since = None
        action = self._actions.get(number)
        if action is None or not action.least <= size <= action.most:
            raise self._misfit(number, size)
        context = self._context
        context.session.board.begin(context.visitor, number)
        if self._from_client:
            context.session.tally.add(Counter.CLIENT_RECEIVED, _HEADER + size)
        context.registry.enter(context.visitor)
        try:
            if self._debug:
                self._trace(action, size)
            else:
                self._perform(action, size)
        finally:
            context.session.board.done(context.visitor)
            context.registry.leave(context.visitor)
            self.idle_since = time.monotonic()

    def _misfit(self, number: int, size: int) -> ProtocolError:
        """Why a request that is not in our table cannot be served."""
        try:
            command, _ = check_request(number, size, self._level)
        except ProtocolError as error:
            return error
        return ProtocolError(
            f"a connection of role {self._role.name.lower()} may not send it", command=command.name
        )

    def _trace(self, action: Action, size: int) -> None:
        """Perform an action and log it: before it begins, since it may be our last."""
        name = action.command.name
        if self._debug == 1:
            _log.debug("%s", name)
            self._perform(action, size)
            return
        _log.debug("%s of %d bytes", name, size)
        started = time.perf_counter()
        self._perform(action, size)
        _log.debug("%s took %.0f us", name, (time.perf_counter() - started) * 1e6)

    def _perform(self, action: Action, size: int) -> None:
        if action.handler is None:
            self._stream_in(action, size)
            return
        self._execute(action, self._read_body(size))

    def _execute(self, action: Action, body: memoryview) -> None:
        """Call the handler of a command, and answer."""
        if self._kept is not None and action.command not in _ALWAYS_DONE:
            if action.answered:
                text, code = self._kept
                self._send_error("; ".join([text, *self._context.take_reports()]), code)
                self._kept = None
            return
        if action.answered and self._context.reports:
            self._send_error("; ".join(self._context.take_reports()), ErrorCode.TRANSFER)
            return
        assert action.handler is not None
        try:
            reply = action.handler(body, self._context)
        except (RefusedError, LibraryError) as error:
            self._refuse(action, error)
            return
        if reply is not None:
            self._reply(reply)

    def _read_body(self, size: int) -> memoryview:
        if size <= _SMALL:
            return memoryview(self._stream.read(size))
        body = memoryview(bytearray(size))
        self._stream.read_into(body)
        return body

    def _reply(self, reply: Message | Sequence[Bytes]) -> None:
        parts = [reply.pack()] if isinstance(reply, Message) else list(reply)
        size = sum(map(len, parts))
        self._stream.send([REPLY_HEADER.pack(size), *parts])
        if self._from_client:
            self._context.session.tally.add(Counter.CLIENT_SENT, REPLY_HEADER.size + size)

    def _refuse(self, action: Action, error: RefusedError | LibraryError) -> None:
        """Answer no, remember it or end the connection: see the head of this file."""
        name = action.command.name
        self._context.session.tally.add(Counter.REFUSED, 1, rule_of(error))
        if self._level == 0 and action.refusal is None:
            raise RefusedError(str(error), command=name) from None
        self._warn("refused", f"refused: {name}: {error}", command=name)
        if self._level == 0 and action.refusal is not None:
            self._reply(action.refusal)
        elif action.answered:
            self._send_error(f"{name}: {error}", _error_code(error))
        elif self._kept is None:
            self._kept = f"{name}: {error}", _error_code(error)

    def _send_error(self, text: str, code: int = ErrorCode.REFUSED) -> None:
        self._stream.send([error_frame(code, text)])

    def _stream_in(self, action: Action, size: int) -> None:
        """Receive a command whose data go from the network to their final place."""
        if action.command is Command.SET_TENSOR:
            self._set_tensor(action, size)
        elif action.command is Command.SET_TENSORS:
            self._set_tensors(action, size)
        elif action.command is Command.STEP:
            self._step(self._read_body(size))
        else:
            self._peer_data(size)

    def _step(self, body: memoryview) -> None:
        """Do the commands that a STEP holds, as if each had come by itself."""
        if self._decoder is None:
            self._decoder = Decoder()
        for command, part in self._decoder.decode(body):
            action = self._actions.get(command)
            if action is None or not action.least <= len(part) <= action.most:
                raise self._misfit(command, len(part))
            self._context.session.board.begin(self._context.visitor, command)
            if action.command is Command.SET_TENSOR:
                self._set_from(action, memoryview(part))
            elif action.handler is None:
                raise ProtocolError("it cannot be part of a STEP", command=command.name)
            else:
                self._execute(action, memoryview(part))

    def _set_from(self, action: Action, body: memoryview) -> None:
        """Write the data of a SET_TENSOR that is in memory."""
        if self._kept is not None:
            return
        try:
            done, head = _SET_HEAD, SetTensor.unpack(body[:_SET_HEAD])
            for place in set_tensor(head, len(body) - _SET_HEAD, self._context):
                place[:] = body[done : done + len(place)]
                done += len(place)
        except RefusedError as error:
            self._refuse(action, error)

    def _peer_data(self, size: int) -> None:
        """Receive the data of a ticket, or from a client: void a ticket."""
        head = PeerData.unpack(self._stream.read(PeerData.LAYOUT.size))
        left = size - PeerData.LAYOUT.size
        if head.size != left:
            cause = f"{head.size} bytes are announced, {left} come"
            raise ProtocolError(cause, command="PEER_DATA")
        inbox = self._context.session.inbox
        if self._role is not Role.PEER:
            inbox.void(head.ticket)
            return
        place = inbox.offer(head.ticket, left, Deadline(settings.BULK_TIMEOUT))
        if place is None:
            self._stream.skip(left)
            return
        try:
            self._stream.read_into(place)
        except NetworkError as error:
            inbox.lost(head.ticket, f"the data broke off ({error.cause})")
            raise
        self._count_peer(left)
        inbox.arrived(head.ticket)

    def _count_peer(self, size: int) -> None:
        """Data of a tensor came from another node."""
        if not self._from_client:
            self._context.session.tally.add(Counter.PEER_RECEIVED, size, self._origin)

    def _set_tensor(self, action: Action, size: int) -> None:
        """Receive a SET_TENSOR of `size` bytes straight into the tensor."""
        head = self._stream.read(_SET_HEAD)
        left = size - _SET_HEAD
        if self._kept is None:
            try:
                for place in set_tensor(SetTensor.unpack(head), left, self._context):
                    self._stream.read_into(place)
                    left -= len(place)
                    self._count_peer(len(place))
            except RefusedError as error:
                self._refuse(action, error)
        self._stream.skip(left)

    def _set_tensors(self, action: Action, size: int) -> None:
        """Receive the writes of a SET_TENSORS one after another."""
        (count,) = COUNT.unpack(self._stream.read(COUNT.size))
        left = size - COUNT.size
        for index in range(count):
            left -= LENGTH.size
            length = LENGTH.unpack(self._stream.read(LENGTH.size))[0] if left >= 0 else 0
            if not _SET_HEAD <= length <= left:
                raise ProtocolError(
                    f"write {index} of {count} does not fit its frame", command="SET_TENSORS"
                )
            self._set_tensor(action, length)
            left -= length
        if left:
            raise ProtocolError(
                f"{left} bytes are left after the last write", command="SET_TENSORS"
            )

    def _say_farewell(self, error: Exception) -> None:
        """The last word to an extended peer, and time to take it.

        Closing a socket with unread bytes resets the connection, and the reset may overtake the
        error. So we end our direction only, and read what still comes for a moment.
        """
        if self._level == 0:
            return
        try:
            self._send_error(str(error))
            self._socket.shutdown(socket.SHUT_WR)
            self._stream.silence = FAREWELL_TIMEOUT
            deadline = time.monotonic() + FAREWELL_TIMEOUT
            while time.monotonic() < deadline:
                self._stream.skip(max(1, self._stream.buffered()))
        except (NetworkError, OSError):
            pass


def _error_code(error: RefusedError | LibraryError) -> int:
    """What the error frame's code tells the client to do."""
    return ErrorCode.TRANSFER if isinstance(error, TransferError) else ErrorCode.REFUSED
