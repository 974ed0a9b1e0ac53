"""What a person chose for this node, and what the node knows about itself. Values only."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from ringline.net.endpoint import Endpoint
from ringline.net.tls import PLAIN, TlsFiles
from ringline.server.limits import CRASH_PAUSE, IDLE_TIMEOUT, MOST_SESSIONS

__all__ = ["DeviceInfo", "ServeOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """The flags of `ringline serve`.

    Attributes:
        endpoint: where to listen; port 0 takes a free one.
        devices: names of the devices to lend; none: all accelerators, else the CPU.
        n_threads: threads of one computation on the CPU.
        max_sessions: clients at once.
        most_memory: bytes of all buffers of a session; 0: as much as the devices have.
        allow_peer: networks and host names that this node may dial; empty: see policy.py.
        idle_timeout: seconds of silence after which a client is dropped, 0: never; session.py.
        crash_pause: first pause of an address whose sessions crash, 0: none; crashes.py.
        metrics: where Prometheus' scrapers are answered; None: nowhere.
        log_format: "text" or "json", see log.py.
        tls: certificate, key and CA, with which `endpoint` speaks TLS; PLAIN: it does not.
        plain_port: a port of loopback without TLS beside it, 0: a free one; None: there is none.
        insecure: whether other machines may reach this node without TLS.
        until_stdin_closes: end when standard input reaches its end.
    """

    endpoint: Endpoint
    devices: tuple[str, ...] = ()
    n_threads: int = 1
    max_sessions: int = MOST_SESSIONS
    most_memory: int = 0
    allow_peer: tuple[str, ...] = ()
    idle_timeout: float = IDLE_TIMEOUT
    crash_pause: float = CRASH_PAUSE
    metrics: Endpoint | None = None
    log_format: str = "text"
    tls: TlsFiles = PLAIN
    plain_port: int | None = None
    insecure: bool = False
    until_stdin_closes: bool = False


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """One device as the node describes it to others. Memory, alignment, max_size: bytes.

    `kind` is the backend it belongs to (CPU, CUDA, ...), `type` the name of its ggml device type.
    """

    name: str
    description: str
    kind: str
    type: str
    memory_free: int
    memory_total: int
    alignment: int
    max_size: int

    def about(self) -> dict[str, object]:
        """The part of it that EXT_HELLO tells a client."""
        facts: dict[str, object] = asdict(self)
        del facts["alignment"], facts["max_size"]
        return facts
