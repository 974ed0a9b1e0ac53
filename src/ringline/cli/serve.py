"""`ringline serve`: lend this machine's devices."""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Annotated

import typer

from ringline.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringline.net.endpoint import DEFAULT_PORT, Endpoint
from ringline.net.tls import TlsFiles
from ringline.server.limits import CRASH_PAUSE, IDLE_TIMEOUT, MOST_SESSIONS
from ringline.server.options import ServeOptions

app = typer.Typer(add_completion=False)

#: as ggml-rpc-server chooses.
_THREADS = max(1, (os.cpu_count() or 1) // 2)
#: what poll() can still wait for, and as good as never.
_MOST_IDLE = 1_000_000.0


class LogFormat(StrEnum):
    """How the node's log is written (server.log.LOG_FORMATS)."""

    TEXT = "text"
    JSON = "json"


def _names(text: str, separators: str = ",") -> tuple[str, ...]:
    """The entries of a list on the command line."""
    return tuple(name for name in re.split(f"[{separators}]", text.replace(" ", "")) if name)


@app.command()
def serve(
    host: Annotated[str, typer.Option("-H", "--host", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("-p", "--port", min=0, max=65535, help="Port; 0 takes a free one.")
    ] = DEFAULT_PORT,
    device: Annotated[
        str,
        typer.Option(
            "-d",
            "--device",
            metavar="DEV1,DEV2",
            help="Devices to lend. [default: all accelerators, else the CPU]",
        ),
    ] = "",
    threads: Annotated[
        int,
        typer.Option(
            "-t",
            "--threads",
            min=1,
            show_default="half of the processors",
            help="Threads of the CPU device.",
        ),
    ] = _THREADS,
    max_sessions: Annotated[
        int, typer.Option("--max-sessions", min=1, help="Clients at once.")
    ] = MOST_SESSIONS,
    most_memory: Annotated[
        int,
        typer.Option(
            "--most-memory",
            min=0,
            metavar="BYTES",
            help="Bytes that the buffers of one client may hold together; 0: all of the devices.",
        ),
    ] = 0,
    allow_peer: Annotated[
        str,
        typer.Option(
            "--allow-peer",
            metavar="NET,NAME",
            help="Networks, addresses and host names of nodes that this node may send tensors to. "
            "[default: what --host implies: loopback for loopback, private networks for a private "
            "address, both for 0.0.0.0, any for a public address]",
        ),
    ] = "",
    idle_timeout: Annotated[
        float,
        typer.Option(
            "--idle-timeout",
            min=0,
            metavar="SECONDS",
            help="Drop a client that has said nothing for so long; 0: never. A ringline client "
            "says something each minute; one of llama.cpp that holds memory is not dropped.",
        ),
    ] = IDLE_TIMEOUT,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            "--metrics-port",
            min=0,
            max=65535,
            show_default="no metrics",
            help="Serve metrics for Prometheus on this port, docs/metrics.md; 0 takes a free one.",
        ),
    ] = None,
    metrics_host: Annotated[
        str, typer.Option("--metrics-host", help="Address for --metrics-port.")
    ] = "127.0.0.1",
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    plain_port: Annotated[
        int | None,
        typer.Option(
            "--plain-port",
            min=0,
            max=65535,
            help="With TLS: a port without TLS beside it, on loopback, for clients of llama.cpp; "
            "0 takes a free one.",
        ),
    ] = None,
    insecure: Annotated[
        bool,
        typer.Option("--insecure", help="Let other machines reach this node without TLS."),
    ] = False,
    log_format: Annotated[
        LogFormat,
        typer.Option("--log-format", help="A line an event: text for people, JSON for programs."),
    ] = LogFormat.TEXT,
    crash_pause: Annotated[
        float, typer.Option("--crash-pause", min=0, hidden=True, help="See server/crashes.py.")
    ] = CRASH_PAUSE,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", hidden=True, help="End with standard input.")
    ] = False,
) -> None:
    """Lend this machine's devices to a ring, or to llama.cpp with --rpc.

    With --tls-cert, --tls-key and --tls-ca only machines with a certificate of that CA can use it
    (`ringline certs` makes them); without, it listens on loopback alone unless told --insecure.

    Prints what it lends and then one line that begins with "ringline: ready on". SIGTERM and Ctrl-C
    end it. Exit code 0 after that, 1 for an address, a device or a library that cannot be used.
    """
    from ringline.server.node import serve as run

    options = ServeOptions(
        endpoint=Endpoint(host, port),
        devices=_names(device, ",/"),
        n_threads=threads,
        max_sessions=max_sessions,
        most_memory=most_memory,
        allow_peer=_names(allow_peer),
        idle_timeout=min(_MOST_IDLE, idle_timeout),
        crash_pause=crash_pause,
        metrics=None if metrics_port is None else Endpoint(metrics_host, metrics_port),
        log_format=log_format.value,
        tls=TlsFiles.chosen(tls_cert, tls_key, tls_ca),
        plain_port=plain_port,
        insecure=insecure,
        until_stdin_closes=until_stdin_closes,
    )
    run(options)
