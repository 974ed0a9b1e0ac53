"""Every error that ringline raises on purpose, sorted by who must act.

    RinglineError
    +-- CallerError       the person or program that called: a flag, a path, a plan
    |   +-- BusyError         too much is asked at once: the same may work later
    |   +-- PromptTooLongError    it does not fit into the context of a request
    |   +-- NoTokenError      a grammar or a bias leaves no token to choose from
    +-- EngineError       the engine has ended: start another one
    +-- LibraryError      the installed llama-cpp-python: missing, other version, other layout
    +-- RemoteError       another process of a ring
        +-- NetworkError      the way to it: refused, lost, silent, not speaking our protocol
        |   +-- DeadlineError     a wait that ran out; says who was waited for and for what
        |   +-- TlsError          one end refuses the other's certificate, or speaks no TLS
        +-- PeerError         the peer itself: it broke the protocol, or answered with an error
            +-- ProtocolError     bytes that the protocol does not allow
            +-- RefusedError      a request that the peer, or we as its peer, refuses
                +-- TransferError     a rendezvous of two nodes failed: decode the step again

Errors keep their facts as attributes and build one sentence from them; `str(error)` is what a
person reads. Foreign exceptions are turned into these once, at the seam where they appear.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = [
    "BusyError",
    "CallerError",
    "DeadlineError",
    "EngineError",
    "LibraryError",
    "NetworkError",
    "NoTokenError",
    "PeerError",
    "PromptTooLongError",
    "ProtocolError",
    "RefusedError",
    "RemoteError",
    "RinglineError",
    "TlsError",
    "TransferError",
]


class RinglineError(Exception):
    """Base of all errors that ringline raises on purpose."""


class CallerError(RinglineError):
    """The caller's input cannot be used: names what, where and what to do instead."""


class BusyError(CallerError):
    """The queue is full: the same request may be taken later."""


class PromptTooLongError(CallerError):
    """The prompt has more tokens than the context of one request."""


class NoTokenError(CallerError):
    """What was asked for allows no token at this place: the grammar or the bias has to change."""


class EngineError(RinglineError):
    """The engine, or the process that it runs in, has ended before the job that waits for it."""


class LibraryError(RinglineError):
    """The ggml or llama library is missing or is not the one ringline was written for."""


class RemoteError(RinglineError):
    """Something that another process of a ring, or the way to it, did not do.

    Attributes:
        peer: endpoint of the peer, `host:port`; "" where it is not known here.
        command: the command that was under way, or None.
        cause: what happened, in words.
        since: names of the commands sent since the last good reply, oldest first.
    """

    def __init__(
        self,
        cause: str,
        *,
        peer: str = "",
        command: str | None = None,
        since: Sequence[str] = (),
    ) -> None:
        self.peer = peer
        self.command = command
        self.cause = cause
        self.since = tuple(since)
        super().__init__(cause)

    def __str__(self) -> str:
        return sentence(self.peer, self.command, self.cause, self.since)


class NetworkError(RemoteError):
    """The way to a peer failed."""


class DeadlineError(NetworkError):
    """A wait ran out of time. `seconds` is the time that was given."""

    def __init__(
        self,
        cause: str,
        *,
        peer: str,
        seconds: float,
        command: str | None = None,
        since: Sequence[str] = (),
    ) -> None:
        self.seconds = seconds
        super().__init__(cause, peer=peer, command=command, since=since)


class TlsError(NetworkError):
    """A connection that is not made: one end refuses the other's certificate, or speaks no TLS.

    `certificate` says that it speaks TLS and we refuse its certificate.
    """

    def __init__(
        self,
        cause: str,
        *,
        peer: str = "",
        command: str | None = None,
        since: Sequence[str] = (),
        certificate: bool = False,
    ) -> None:
        self.certificate = certificate
        super().__init__(cause, peer=peer, command=command, since=since)


class PeerError(RemoteError):
    """The peer broke the protocol or refused."""


class ProtocolError(PeerError):
    """Bytes came that the protocol does not allow."""


class RefusedError(PeerError):
    """A well-formed request that is refused.

    Attributes:
        code: the number in the error frame.
        rule: what it breaks, as a word to count by ("bounds", "op-shape", "limit-memory"); "" where
            nobody counts. It stays where the error was raised: it is not sent.
    """

    def __init__(
        self,
        cause: str,
        *,
        peer: str = "",
        command: str | None = None,
        since: Sequence[str] = (),
        code: int = 1,
        rule: str = "",
    ) -> None:
        self.code = code
        self.rule = rule
        super().__init__(cause, peer=peer, command=command, since=since)


class TransferError(RefusedError):
    """A hidden state did not get from one node to the other; both nodes are well.

    The step that needed it may be decoded again: the transfer takes another path then.
    """


def sentence(peer: str, command: str | None, cause: str, since: Sequence[str]) -> str:
    """Build the one sentence a person reads: who, during what, why, and what was on its way."""
    who = f"node {peer}: " if peer else ""
    during = f"{command}: " if command else ""
    tail = f" (sent since its last reply: {summary(since)})" if since else ""
    return f"{who}{during}{cause}{tail}"


def summary(names: Sequence[str]) -> str:
    """Shorten a list of command names: runs of one name become `NAME x3`."""
    runs: list[tuple[str, int]] = []
    for name in names:
        if runs and runs[-1][0] == name:
            runs[-1] = (name, runs[-1][1] + 1)
        else:
            runs.append((name, 1))
    return ", ".join(name if n == 1 else f"{name} x{n}" for name, n in runs)
