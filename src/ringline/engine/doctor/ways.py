"""The ways from node to node: which a ring would use, and the path of a hidden state on each."""

from __future__ import annotations

import ipaddress
from typing import Final

from ringline.client.edge import Path
from ringline.client.node import Node
from ringline.engine.doctor.findings import Finding, Grade
from ringline.errors import RemoteError
from ringline.settings import p2p_enabled
from ringline.wire.extension import ProbePeer

__all__ = ["examine_way"]

_DIRECT_LEVEL: Final = 3
_PROBE_LEVEL: Final = 4
#: bytes of a probe: hidden states of some rows.
_SIZE: Final = 64 * 1024


def examine_way(source: Node, target: Node, *, used: bool) -> Finding:
    """Whether a hidden state gets straight from one node to another.

    Args:
        source: where it comes from.
        target: where it goes to.
        used: whether a ring in the given order uses this way.
    """
    subject = f"{source.endpoint} -> {target.endpoint}"
    facts: dict[str, object] = {"used": used, "path": str(Path.HUB)}
    level = min(source.level, target.level)
    if not p2p_enabled():
        return _hub(subject, "RINGLINE_P2P=0 says so", "unset RINGLINE_P2P", facts)
    if level < _DIRECT_LEVEL:
        older = source if source.level <= target.level else target
        cause = f"{older.endpoint} has extension level {older.level}"
        if not used:  # the node's own version says it already
            return Finding(Grade.OK, subject, "way", f"{_hub_text(used)}: {cause}", facts=facts)
        return _hub(subject, cause, f"run a newer ringline serve on {older.endpoint}", facts)
    if level < _PROBE_LEVEL:
        facts["path"] = str(Path.DIRECT)
        text = f"direct, not tried (level {level} has no probe)"
        return Finding(Grade.OK, subject, "way", text, facts=facts)
    try:
        reply = _probe(source, target)
    except RemoteError as error:
        advice = f"read the log of {source.endpoint}"
        return Finding(Grade.PROBLEM, subject, "way", f"the probe failed: {error.cause}", advice)
    if reply.result != 1:
        return _hub(subject, "the source does not get through", _why(source, target), facts)
    facts |= {
        "path": str(Path.RENDEZVOUS),
        "seconds": reply.round_trip_ns / 1e9,
        "bytes_per_second": reply.bytes_per_second,
    }
    trip, rate = reply.round_trip_ns / 1e6, reply.bytes_per_second / 1e6
    order = "" if used else ", in another order of the nodes"
    text = f"direct{order}: round trip {trip:.3g} ms, {rate:,.0f} MB/s"
    return Finding(Grade.OK, subject, "way", text, facts=facts)


def _probe(source: Node, target: Node) -> ProbePeer.Reply:
    request = ProbePeer(target.greeting.session, _SIZE, str(target.endpoint))
    size = ProbePeer.Reply.LAYOUT.size
    return ProbePeer.Reply.unpack(source.main.call(request.COMMAND, request.pack(), size=size))


def _hub(subject: str, cause: str, advice: str, facts: dict[str, object]) -> Finding:
    text = f"{_hub_text(bool(facts['used']))}: {cause}, so hidden states go through this machine"
    return Finding(Grade.WARNING, subject, "way", text, advice, facts)


def _hub_text(used: bool) -> str:
    return "hub" if used else "hub, in another order of the nodes"


def _why(source: Node, target: Node) -> str:
    """What most likely keeps the source from the target."""
    if _is_loopback(target.endpoint.host) and not _is_loopback(source.endpoint.host):
        return (
            f"{target.endpoint.host} means another machine there: name the node by an address that "
            "all nodes reach"
        )
    return (
        f"on {source.endpoint} look at --allow-peer, at whether it resolves and reaches "
        f"{target.endpoint}, and at its log"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return host.lower() == "localhost"
