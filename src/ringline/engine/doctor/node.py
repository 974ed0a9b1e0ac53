"""One node: can it be reached, what is it, how fast is it, does it compute right?

Each check is a function that returns its findings. What fails in a way that the next check depends
on ends the list: its last finding is a problem. Times are seconds, sizes bytes.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import numpy as np

from ringline import settings
from ringline.client.counters import Counters
from ringline.client.node import Node
from ringline.engine.doctor.findings import Finding, Grade
from ringline.engine.doctor.known import TOLERANCE, F32s, compute_there, unsupported
from ringline.errors import DeadlineError, RemoteError, TlsError
from ringline.ggml.find import PACKAGE_VERSION
from ringline.ggml.library import GGML_VERSION
from ringline.net.endpoint import Endpoint
from ringline.net.tls import TlsFiles
from ringline.wire.commands import EXTENSION_LEVEL, Command
from ringline.wire.messages import Count, DeviceCount, SetTensor
from ringline.wire.tensor import Tensor

__all__ = ["examine_node", "reach"]

#: a token crosses each way between stages once, and each node is asked at least once a token.
_SLOW_TRIP: Final = 0.01
_ROUNDS: Final = 10
#: bytes of the write that is timed.
_WRITE: Final = 4 << 20
_WRITES: Final = 3
_SLOW_WRITE: Final = 10_000_000
#: a device with less than this free holds no stage of any use.
_LITTLE: Final = 64 << 20


def reach(endpoint: Endpoint, tls: TlsFiles) -> tuple[Node | None, list[Finding]]:
    """Resolve the name, connect and greet; no node where that fails, then the last is a problem."""
    name, findings = str(endpoint), []
    try:
        found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
    except OSError as error:
        text = f"the host name cannot be resolved ({error.strerror})"
        advice = "write the address, or make the name known to this machine"
        return None, [Finding(Grade.PROBLEM, name, "resolve", text, advice)]
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    facts: dict[str, object] = {"addresses": addresses}
    findings.append(Finding(Grade.OK, name, "resolve", ", ".join(addresses), facts=facts))
    started = time.perf_counter()
    try:
        node = Node(endpoint, Counters(), tls)
    except RemoteError as error:
        return None, [*findings, _not_reached(name, error)]
    seconds = time.perf_counter() - started
    text = f"answers after {_time(seconds)}{', over TLS' if tls else ''}"
    return node, [*findings, Finding(Grade.OK, name, "greet", text, facts={"seconds": seconds})]


def _not_reached(name: str, error: RemoteError) -> Finding:
    if isinstance(error, TlsError):
        advice = "look at the files of --tls-cert, --tls-key and --tls-ca on both ends, and its log"
        return Finding(Grade.PROBLEM, name, "tls", error.cause, advice)
    if "cannot connect" in error.cause:
        advice = "start ringline serve there, look at host and port and at a firewall between"
        text = error.cause.partition(":")[0]
        return Finding(Grade.PROBLEM, name, "connect", text, advice)
    if isinstance(error, DeadlineError) and error.command is None:
        advice = "look at host and port, at the route and at a firewall that drops packets"
        return Finding(Grade.PROBLEM, name, "connect", error.cause, advice)
    advice = "run ringline serve, or a ggml-rpc-server of the same llama.cpp version, on that port"
    return Finding(Grade.PROBLEM, name, "greet", error.cause, advice)


def examine_node(node: Node, reference: F32s) -> list[Finding]:
    """All checks of a node that answers; `reference` is the known graph's result here."""
    findings: list[Finding] = []
    checks: list[Callable[[], Finding]] = [
        partial(check, node) for check in (_version, _engine, _round_trip, _throughput)
    ]
    for index in range(len(node.devices)):
        checks += [partial(_memory, node, index), partial(_result, node, index, reference)]
    for check in checks:
        try:
            findings.append(check())
        except RemoteError as error:
            findings.append(_failed(node, error))
            if node.main.error is not None:
                break
    return findings


def _failed(node: Node, error: RemoteError) -> Finding:
    command = f"{error.command}: " if error.command else ""
    advice = "read the log of the node"
    return Finding(Grade.PROBLEM, str(node.endpoint), "failure", f"{command}{error.cause}", advice)


def _version(node: Node) -> Finding:
    name, level = str(node.endpoint), node.level
    facts: dict[str, object] = {"protocol": node.greeting.version_text, "level": level}
    text = f"ggml RPC {node.greeting.version_text}, extension level {level}"
    if level == 0:
        text = f"ggml RPC {node.greeting.version_text}, a stock server"
        advice = (
            "hidden states go through this machine and the server has one client at a time: run "
            "ringline serve there to change that"
        )
        return Finding(Grade.WARNING, name, "version", text, advice, facts)
    if level < EXTENSION_LEVEL:
        advice = f"it is older than this ringline (level {EXTENSION_LEVEL}): update it"
        return Finding(Grade.WARNING, name, "version", text, advice, facts)
    return Finding(Grade.OK, name, "version", text, facts=facts)


def _engine(node: Node) -> Finding:
    name, ours = str(node.endpoint), f"llama-cpp-python {PACKAGE_VERSION}, ggml {GGML_VERSION}"
    theirs = str(node.greeting.about.get("engine", ""))
    facts: dict[str, object] = {"engine": theirs, "ours": ours}
    if not node.level:
        return Finding(Grade.OK, name, "engine", "a stock server does not tell", facts=facts)
    if theirs != ours:
        advice = "results may differ in their last digits: install the same version everywhere"
        text = f"{theirs}, and {ours} here"
        return Finding(Grade.WARNING, name, "engine", text, advice, facts)
    return Finding(Grade.OK, name, "engine", theirs, facts=facts)


def _round_trip(node: Node) -> Finding:
    """The quickest of some round trips, and how it goes with the deadline for a reply."""
    best = min(_one_trip(node) for _ in range(_ROUNDS))
    patience = settings.reply_timeout()
    text = f"{_time(best)}; a reply may take {patience:g} s (RINGLINE_TIMEOUT)"
    facts: dict[str, object] = {"seconds": best, "reply_timeout": patience}
    name = str(node.endpoint)
    if best > patience / 10:
        advice = "raise RINGLINE_TIMEOUT: a step would not be done before its deadline"
        return Finding(Grade.PROBLEM, name, "round-trip", text, advice, facts)
    if best > _SLOW_TRIP:
        advice = f"each token waits for it: aim below {_time(_SLOW_TRIP)}, by cable if it is Wi-Fi"
        return Finding(Grade.WARNING, name, "round-trip", text, advice, facts)
    return Finding(Grade.OK, name, "round-trip", text, facts=facts)


def _one_trip(node: Node) -> float:
    started = time.perf_counter()
    node.main.call(DeviceCount.COMMAND, size=Count.LAYOUT.size)
    return time.perf_counter() - started


def _throughput(node: Node) -> Finding:
    """The quickest of some writes of some megabytes, less a round trip."""
    name = str(node.endpoint)
    made = node.alloc_buffer(0, _WRITE)
    if not made.handle:
        text, advice = f"no room for {_WRITE >> 20} MiB", "free memory of its first device"
        return Finding(Grade.PROBLEM, name, "throughput", text, advice)
    base = node.buffer_base(made.handle)
    n = _WRITE // 4
    whole = (4, _WRITE, _WRITE, _WRITE)
    tensor = Tensor(id=1, type=0, buffer=made.handle, ne=(n, 1, 1, 1), nb=whole, data=base)
    head, data = SetTensor(tensor.pack(), 0, 0).pack(), bytes(_WRITE)
    seconds = min(_one_write(node, head, data) for _ in range(_WRITES))
    node.free_buffer(made.handle, 0)
    rate = _WRITE / seconds
    text = f"{rate / 1e6:,.0f} MB/s for a write of {_WRITE >> 20} MiB"
    facts: dict[str, object] = {"bytes_per_second": rate, "size": _WRITE}
    if rate < _SLOW_WRITE:
        advice = "weights load at this rate, and prompts suffer: look for a faster link"
        return Finding(Grade.WARNING, name, "throughput", text, advice, facts)
    return Finding(Grade.OK, name, "throughput", text, facts=facts)


def _one_write(node: Node, head: bytes, data: bytes) -> float:
    trip = _one_trip(node)
    started = time.perf_counter()
    node.main.post(Command.SET_TENSOR, head, data)
    _one_trip(node)
    return max(time.perf_counter() - started - trip, 1e-6)


def _memory(node: Node, index: int) -> Finding:
    device, name = node.devices[index], str(node.endpoint)
    free, total = node.memory(index)
    what = f" ({device.name}, {device.kind})" if device.kind else ""
    text = f"device {index}{what}: {free >> 20} of {total >> 20} MiB free"
    facts: dict[str, object] = {"device": index, "free": free, "total": total}
    if free < _LITTLE:
        advice = "free memory there, or leave the device out (--device)"
        return Finding(Grade.WARNING, name, "memory", text, advice, facts)
    return Finding(Grade.OK, name, "memory", text, facts=facts)


def _result(node: Node, index: int, reference: F32s) -> Finding:
    """Compute the known graph there and compare."""
    name = str(node.endpoint)
    facts: dict[str, object] = {"device": index, "tolerance": TOLERANCE}
    missing = unsupported(node, index)
    if missing:
        text = f"device {index} cannot compute {', '.join(missing)}"
        advice = "leave the device out (--device)"
        return Finding(Grade.PROBLEM, name, "result", text, advice, facts)
    found = compute_there(node, index)
    difference = float(np.max(np.abs(found - reference)))
    facts["difference"] = difference if np.isfinite(difference) else str(difference)
    if not difference <= TOLERANCE:  # NaN is no right answer either
        text = f"device {index} gives a wrong result (off by {difference:.3g})"
        advice = "leave the device out (--device) and look at its driver"
        return Finding(Grade.PROBLEM, name, "result", text, advice, facts)
    text = f"device {index} computes what this CPU does (within {difference:.1g})"
    return Finding(Grade.OK, name, "result", text, facts=facts)


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
