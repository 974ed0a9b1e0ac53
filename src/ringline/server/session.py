"""A session process: all that one client owns on this node, and one thread per connection.

It starts idle, with the devices found, and waits for its first connection on the control socket.
It ends when the last connection of its client is gone (peers do not keep it), when the client has
said nothing for --idle-timeout, or when the gatekeeper is gone. Ending is by _exit(): the kernel
gives everything back faster than we could.

Silence is that of all connections of the client together, and none of them computing. A client of
ringline sends a PING each minute where it has nothing else to say. A stock client cannot: where it
holds buffers it is waiting with a model loaded, and keep-alive alone notices that it is gone.

Threads: the main thread takes new connections from the gatekeeper; each connection has a thread.
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
import time
from dataclasses import replace
from functools import partial
from typing import Final, NoReturn

import ringline
from ringline.ggml.devices import Device, find_devices
from ringline.ggml.find import PACKAGE_VERSION
from ringline.ggml.library import GGML_VERSION
from ringline.server.board import Board
from ringline.server.buffers import Registry
from ringline.server.connection import Connection
from ringline.server.context import Context, Node, Session
from ringline.server.handover import Handover, receive
from ringline.server.inbox import Inbox
from ringline.server.limits import MOST_CONNECTIONS
from ringline.server.log import speak_as, tell
from ringline.server.options import DeviceInfo
from ringline.server.peers import Peers
from ringline.server.senders import Senders
from ringline.server.settling import go_first, settle_in
from ringline.server.tally import Counter, Tally
from ringline.wire.commands import EXTENSION_LEVEL, RULES
from ringline.wire.extension import ExtHelloReply, Feature, Role
from ringline.wire.frames import reply_frame

__all__ = ["run_session"]

_log = logging.getLogger(__name__)
#: seconds between two looks whether the client of a session that works is still there.
_LOOK: Final = 5.0
_MOST_REQUEST: Final = max(rule.most for rule in RULES.values())


def run_session(control: socket.socket, node: Node, board: Board) -> NoReturn:
    """The life of a session process, from the fork on; never returns.

    Args:
        control: our end of the socketpair to the gatekeeper.
        node: what the gatekeeper knew when it forked.
        board: shared with the gatekeeper.
    """
    code = 1
    try:
        settle_in()
        go_first()
        speak_as("ringline serve [idle]")
        devices = tuple(find_devices([device.name for device in node.devices]))
        first = receive(control)
        if first is not None:
            _Host(control, node, devices, board, first[0]).run(*first)
        code = 0
    except Exception:
        _log.exception("the session process fails")
    finally:
        logging.shutdown()
        os._exit(code)


class _Host:
    """The main thread's part: takes connections in, notices when the last one has left."""

    def __init__(
        self,
        control: socket.socket,
        node: Node,
        devices: tuple[Device, ...],
        board: Board,
        first: Handover,
    ) -> None:
        self._control = control
        tally = Tally(board.sheet)
        peers = Peers(node.policy, node.options.tls, sent=partial(_count_sent, tally))
        self._session = Session(
            node=node,
            devices=devices,
            number=first.session,
            secret=bytes.fromhex(first.secret),
            client=first.client,
            board=board,
            registry=Registry(first.session, most=node.options.most_memory),
            peers=peers,
            senders=Senders(peers),
            inbox=Inbox(),
            tally=tally,
        )
        #: guards _holders, _guests and _clients.
        self._lock = threading.Lock()
        self._clients: set[Connection] = set()  # those of the client, that hold the session
        self._stock = False
        self._holders = 0
        self._guests = 0
        self._visitors = 0
        self._over, self._tell_over = os.pipe()

    def run(self, handover: Handover, connection: socket.socket) -> None:
        """Serve until the client has left or the gatekeeper is gone."""
        number = f"{handover.session:08x}"
        speak_as(f"ringline serve [session {number}]", session=number, client=handover.client)
        self._stock = handover.level == 0
        self._admit(handover, connection)
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._over, select.POLLIN)
        deserted = False
        while True:
            patience = self._patience()
            if patience is not None and patience <= 0:
                self._dismiss()
                return
            seconds = _LOOK if patience is None else min(patience, _LOOK)
            ready = {descriptor for descriptor, _ in poller.poll(int(seconds * 1000) + 1)}
            if self._over in ready:
                return
            if not ready:
                before, deserted = deserted, self._deserted()
                if before and deserted:
                    self._say_deserted()
                    return
                continue
            more = receive(self._control)
            if more is None:
                tell(_log, logging.WARNING, "orphan", "the gatekeeper is gone, ending")
                return
            self._admit(*more)

    def _admit(self, handover: Handover, sock: socket.socket) -> None:
        """Give a connection a thread of its own."""
        self._visitors += 1
        connection = Connection(sock, handover, Context(self._session, self._visitors))
        holds = handover.role is not Role.PEER
        with self._lock:
            room = self._holders + self._guests < MOST_CONNECTIONS
            if room:
                self._count(holds, 1)
            if room and holds:
                self._clients.add(connection)
        serve = self._serve if room else self._turn_away
        name = f"{handover.role.name.lower()} {handover.client}"
        threading.Thread(target=serve, args=(connection, handover), name=name, daemon=True).start()

    def _patience(self) -> float | None:
        """Seconds that the client may still be silent; None: as long as it likes."""
        limit = self._session.node.options.idle_timeout
        if not limit:
            return None
        with self._lock:
            since = [connection.idle_since for connection in self._clients]
        if None in since or (self._stock and len(self._session.registry)):
            return limit
        return limit - (time.monotonic() - max(filter(None, since), default=time.monotonic()))

    def _deserted(self) -> bool:
        """Whether the client has left in the middle of its work: nobody waits for the end of it.

        A thread that computes looks at no socket, and other sessions wait for the device.
        """
        with self._lock:
            clients = list(self._clients)
        return bool(clients) and all(connection.deserted() for connection in clients)

    def _say_deserted(self) -> None:
        doing = self._session.board.doing()
        text = "the client has left in the middle of %s: the session ends"
        tell(_log, logging.INFO, "deserted", text, doing, command=doing)

    def _dismiss(self) -> None:
        """The client has been silent for too long."""
        limit = self._session.node.options.idle_timeout
        reason = f"the client has said nothing for {limit:g} s (--idle-timeout): its session ends"
        with self._lock:
            clients = list(self._clients)
        for connection in clients:
            connection.dismiss(reason)
        tell(_log, logging.WARNING, "idle", reason, seconds=limit)

    def _turn_away(self, connection: Connection, _: Handover) -> None:
        connection.turn_away(
            f"this session has {MOST_CONNECTIONS} connections already, more are not allowed"
        )

    def _serve(self, connection: Connection, handover: Handover) -> None:
        """The life of a connection's thread."""
        try:
            connection.serve(partial(self._greeting, handover) if handover.level else None)
        finally:
            with self._lock:
                self._count(handover.role is not Role.PEER, -1)
                self._clients.discard(connection)
                over = self._holders == 0
            if over:
                os.write(self._tell_over, b"x")

    def _count(self, holds: bool, change: int) -> None:
        if holds:
            self._holders += change
        else:
            self._guests += change

    def _greeting(self, handover: Handover) -> bytes:
        """The reply to EXT_HELLO; a peer does not learn the secret that lets a client attach."""
        session = self._session
        reply = ExtHelloReply(
            level=EXTENSION_LEVEL,
            features=Feature.SUPPORTS_OP | Feature.COUNTERS,
            session=session.number,
            secret=bytes(16) if handover.role is Role.PEER else session.secret,
            most_request=_MOST_REQUEST,
            most_connections=MOST_CONNECTIONS,
            about=_about(session),
        )
        return reply_frame(reply.pack())


def _count_sent(tally: Tally, endpoint: str, size: int) -> None:
    tally.add(Counter.PEER_SENT, size, endpoint)


def _about(session: Session) -> dict[str, object]:
    """The node in words, with its devices' memory as it is now."""
    return {
        "name": socket.gethostname(),
        "version": ringline.__version__,
        "engine": f"llama-cpp-python {PACKAGE_VERSION}, ggml {GGML_VERSION}",
        "devices": [
            _fresh(info, device).about()
            for info, device in zip(session.node.devices, session.devices, strict=True)
        ],
    }


def _fresh(info: DeviceInfo, device: Device) -> DeviceInfo:
    free, total = device.memory()
    return replace(info, memory_free=free, memory_total=total)
