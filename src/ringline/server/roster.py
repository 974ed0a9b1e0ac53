"""The live sessions of a node, and where a new connection belongs.

A session's id is a random u32, and the upper half of every buffer handle in it: that is how a peer
that was given a handle finds the session. The secret lets a client, and nobody else, attach further
connections.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import signal
import socket
import time
from dataclasses import dataclass

from ringline.errors import RefusedError
from ringline.net.endpoint import Endpoint
from ringline.server.crashes import Crashes
from ringline.server.handover import Handover
from ringline.server.limits import WARM_PROCESSES
from ringline.server.log import tell
from ringline.server.origin import origin_of
from ringline.server.pool import Pool, SessionProcess
from ringline.server.tally import Counter, Tally
from ringline.wire.commands import EXTENSION_LEVEL
from ringline.wire.extension import ExtHello, Role

__all__ = ["Roster"]

_log = logging.getLogger(__name__)
#: the level that brought transfers between nodes.
_PEER_LEVEL = 3


@dataclass(frozen=True, slots=True)
class _Live:
    """A session that has begun."""

    number: int
    secret: bytes
    level: int
    client: str
    process: SessionProcess
    began: float


class Roster:
    """Begins sessions, routes connections to them, and knows when they have ended."""

    def __init__(self, pool: Pool, most: int, crashes: Crashes, tally: Tally) -> None:
        """Begin at most `most` sessions at once; `tally` counts them."""
        self._pool = pool
        self._tally = tally
        self._most = most
        self._crashes = crashes
        self._live: dict[int, _Live] = {}

    def admit(self, hello: ExtHello | None, client: str, connection: socket.socket) -> None:
        """Give a connection to the session where it belongs, a new one or the one that it names.

        Args:
            hello: what it said; None for a stock client.
            client: its address, for people.
            connection: its socket; our copy stays open.

        Raises:
            RefusedError: it belongs nowhere, or there is no room.
        """
        if hello is None:
            self._begin(0, client, connection)
            return
        level = min(hello.level, EXTENSION_LEVEL)
        if level < 1:
            raise RefusedError("EXT_HELLO names level 0, which has no EXT_HELLO")
        if hello.role == Role.CLIENT:
            self._begin(level, client, connection)
        elif hello.role == Role.ATTACH:
            self._join(self._attachable(hello), Role.ATTACH, level, client, connection)
        elif hello.role == Role.PEER:
            self._join(self._writable(hello, level), Role.PEER, level, client, connection)
        else:
            raise RefusedError(f"{hello.role} is no role")

    def ended(self, process: SessionProcess) -> None:
        """A session process has ended: log how, and forget it."""
        code = process.reap()
        live = next((live for live in self._live.values() if live.process is process), None)
        if live is not None:
            del self._live[live.number]
            self._tally.set(Counter.OPEN, len(self._live))
            self._log_end(live, code)
        else:
            self._pool.remove(process)
            self._tally.add(Counter.CRASHED, 1, _cause(code))
            text = "an idle session process (pid %d) %s"
            tell(
                _log, logging.WARNING, "idle_process_end", text, process.pid, _how(code), code=code
            )
        process.close()

    def _begin(self, level: int, client: str, connection: socket.socket) -> None:
        self._crashes.check(_origin(client))
        if len(self._live) >= self._most:
            raise RefusedError(
                f"this node serves {self._most} clients already, its limit (--max-sessions)"
            )
        number, secret = self._new_number(), secrets.token_bytes(16)
        handover = Handover(
            role=Role.CLIENT, level=level, client=client, session=number, secret=secret.hex()
        )
        process = self._start(handover, connection)
        self._live[number] = _Live(number, secret, level, client, process, time.monotonic())
        self._tally.add(Counter.SESSIONS, 1)
        self._tally.set(Counter.OPEN, len(self._live))
        tell(
            _log,
            logging.INFO,
            "session_begin",
            "session %08x begins: %s, level %d, pid %d",
            number,
            client,
            level,
            process.pid,
            session=f"{number:08x}",
            client=client,
            extension_level=level,
            pid=process.pid,
        )

    def _start(self, handover: Handover, connection: socket.socket) -> SessionProcess:
        """Hand a connection to a new session; an idle process may have died unnoticed."""
        cause: OSError | None = None
        for _ in range(WARM_PROCESSES + 1):
            try:
                process = self._pool.take()
                process.hand_over(handover, connection)
            except OSError as error:
                cause = error
            else:
                return process
        raise RefusedError(f"this node cannot start a session process ({cause})")

    def _join(
        self, live: _Live, role: Role, level: int, client: str, connection: socket.socket
    ) -> None:
        handover = Handover(
            role=role, level=level, client=client, session=live.number, secret=live.secret.hex()
        )
        try:
            live.process.hand_over(handover, connection)
        except OSError as error:  # it has just ended, or is too busy to take messages
            raise RefusedError(f"the session takes no more connections ({error})") from None
        name, number = role.name.lower(), f"{live.number:08x}"
        text = "session %s: %s joins as %s"
        facts = {"session": number, "client": client, "role": name}
        tell(_log, logging.INFO, "session_join", text, number, client, name, **facts)

    def _attachable(self, hello: ExtHello) -> _Live:
        live = self._live.get(hello.session)
        # The same answer to a wrong id and to a wrong secret: neither can be probed.
        if live is None or not hmac.compare_digest(live.secret, hello.secret):
            raise RefusedError("there is no session with this id and secret")
        return live

    def _writable(self, hello: ExtHello, level: int) -> _Live:
        if level < _PEER_LEVEL:
            raise RefusedError(f"a peer needs extension level {_PEER_LEVEL}, not {level}")
        live = self._live.get(hello.session)
        if live is None or live.level < _PEER_LEVEL:
            raise RefusedError("there is no session with this id that a peer may write to")
        return live

    def _new_number(self) -> int:
        while True:
            number = secrets.randbits(32)
            if number and number not in self._live:
                return number

    def _log_end(self, live: _Live, code: int) -> None:
        lasted = time.monotonic() - live.began
        number, last = f"{live.number:08x}", live.process.doing()
        facts = {
            "session": number,
            "client": live.client,
            "seconds": round(lasted, 3),
            "code": code,
            "last_command": last,
            "others": len(self._live),
        }
        if code == 0:
            text = "session %s of %s ended after %.1f s"
            tell(_log, logging.INFO, "session_end", text, number, live.client, lasted, **facts)
            return
        facts["cause"] = cause = _cause(code)
        self._tally.add(Counter.CRASHED, 1, cause)
        if code != -signal.SIGTERM:  # that was the operator
            facts["pause"] = self._crashes.note(_origin(live.client), cause, last)
        text = "session %s of %s %s after %.1f s; its last command was %s; %d other sessions go on"
        args = (number, live.client, _how(code), lasted, last, len(self._live))
        tell(_log, logging.WARNING, "session_crash", text, *args, **facts)


def _origin(client: str) -> str:
    """What counts as the address of a client, whose name is its endpoint."""
    return origin_of(Endpoint.parse(client).host)


def _how(code: int) -> str:
    """An exit status in words."""
    return f"ended with {_cause(code)}" if code >= 0 else f"was killed by {_cause(code)}"


def _cause(code: int) -> str:
    """The name of the signal that ended a process, or its exit code."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
