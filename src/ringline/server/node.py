"""Put a node together: listen, ask the devices, say what there is, and keep the gate."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import resource

import ringline
from ringline import settings
from ringline.ggml.find import PACKAGE_VERSION
from ringline.ggml.library import GGML_VERSION, load
from ringline.ggml.types import tables
from ringline.net.endpoint import Endpoint
from ringline.server.context import Node
from ringline.server.execution import LockFiles
from ringline.server.gatekeeper import Gatekeeper
from ringline.server.log import log_to_stderr, tell
from ringline.server.options import DeviceInfo, ServeOptions
from ringline.server.policy import PeerPolicy
from ringline.server.ports import Ports
from ringline.server.probe import describe_devices
from ringline.wire.commands import BASE_VERSION, EXTENSION_LEVEL

__all__ = ["serve"]

_log = logging.getLogger(__name__)
_MIB = 1 << 20
#: each session costs the gatekeeper three descriptors, each connection in its handshake one.
_DESCRIPTORS = 16384


def serve(options: ServeOptions) -> None:
    """Run a node until SIGTERM, Ctrl-C, or the end of standard input where that was asked for.

    Raises:
        CallerError: the address, a device or a peer cannot be used.
        LibraryError: ggml is missing or another one.
    """
    log_to_stderr(options.log_format)
    with contextlib.ExitStack() as stack:
        ports = Ports.open(options, stack)
        endpoint = ports.endpoint
        policy = PeerPolicy.parse(options.allow_peer, endpoint.host)
        _prepare_to_fork()
        devices = describe_devices(options.devices)
        files = {device.name: LockFiles(device.name) for device in devices}  # one may stand twice
        locks = tuple(files[device.name] for device in devices)
        node = Node(options, devices, locks, policy)
        with Gatekeeper(node, ports.plain, ports.tls, ports.scrapers) as gatekeeper:
            if ports.exposed:
                _warn(endpoint)
            print(_banner(ports, devices, options.n_threads), flush=True)
            where = str(endpoint)
            tell(_log, logging.INFO, "ready", "ready on %s", where, endpoint=where)
            gatekeeper.run()
            tell(_log, logging.INFO, "stop", "ends as it was asked to", endpoint=where)


def _prepare_to_fork() -> None:
    """Load and check what every session needs, once, before the first fork."""
    load()
    tables()
    if not settings.debug_level():
        # ggml's abort() starts a debugger to print a stack; our log says what was going on.
        os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft = _DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _DESCRIPTORS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, most))
    # What exists now lives as long as we do: the collector need not touch, and so copy, its pages.
    gc.collect()
    gc.freeze()


def _warn(endpoint: Endpoint) -> None:
    line = "!" * 76
    _log.warning(
        "\n%s\nListening on %s, which other machines can reach (--insecure).\n"
        "Nothing is encrypted and nobody is asked who they are: whoever reaches this port can use\n"
        "these devices. Never expose it to an open network; see `ringline certs`.\n%s",
        line,
        endpoint,
        line,
        extra={"event": "exposed", "facts": {"endpoint": str(endpoint)}, "banner": True},
    )


def _banner(ports: Ports, devices: tuple[DeviceInfo, ...], n_threads: int) -> str:
    """What the node is, and as its last line that it is ready."""
    version = ".".join(map(str, BASE_VERSION))
    lines = [
        f"ringline node {ringline.__version__}",
        f"  endpoint   {ports.endpoint}",
        *ports.about,
        f"  protocol   ggml RPC {version}, ringline extension level {EXTENSION_LEVEL}",
        f"  engine     llama-cpp-python {PACKAGE_VERSION}, ggml {GGML_VERSION}",
        f"  threads    {n_threads}",
    ]
    for index, device in enumerate(devices):
        total, free = device.memory_total // _MIB, device.memory_free // _MIB
        name = f"{device.name}: {device.description}"
        lines.append(f"  device {index}   {name} ({total} MiB, {free} MiB free)")
    return "\n".join([*lines, f"ringline: ready on {ports.endpoint}"])
