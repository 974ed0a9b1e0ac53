"""`ringline devices`: what each node of a ring lends."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from ringline.cli.tables import print_table
from ringline.cli.tls_options import TlsCa, TlsCert, TlsKey
from ringline.client.ring import RemoteDevices
from ringline.errors import CallerError
from ringline.net.endpoint import parse_endpoints
from ringline.net.tls import TlsFiles

app = typer.Typer(add_completion=False)


@app.command()
def devices(
    rpc: Annotated[str, typer.Option("--rpc", help="Nodes, host:port, separated by commas.")],
    tls_cert: TlsCert = "",
    tls_key: TlsKey = "",
    tls_ca: TlsCa = "",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List nodes with their devices, free memory, versions and extension levels."""
    endpoints = parse_endpoints(rpc)
    if not endpoints:
        raise CallerError("--rpc names no node: give one or more as host:port, with commas")
    with RemoteDevices(endpoints, tls=TlsFiles.chosen(tls_cert, tls_key, tls_ca)) as ring:
        rows = [_row(ring, number) for number in range(len(ring.devices))]
    if as_json:
        print(json.dumps({"devices": rows}, indent=2))
        return
    print_table(_table(rows))


def _row(ring: RemoteDevices, number: int) -> dict[str, Any]:
    device = ring.devices[number]
    free, total = device.memory()
    greeting = device.node.greeting
    return {
        "device": device.name,
        "endpoint": str(device.node.endpoint),
        "node": greeting.about.get("name", ""),
        "kind": device.facts.kind or "unknown",
        "description": device.facts.description,
        "memory_free": free,
        "memory_total": total,
        "protocol": greeting.version_text,
        "level": greeting.level,
        "server": f"ringline {greeting.about.get('version')}" if greeting.level else "stock",
        "engine": greeting.about.get("engine", ""),
    }


def _table(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for title in ("device", "node", "kind", "free MiB", "total MiB", "protocol", "server", "what"):
        numeric = title.endswith("MiB")
        table.add_column(title, justify="right" if numeric else "left")
    for row in rows:
        level = f", level {row['level']}" if row["level"] else ""
        cells = (
            row["device"],
            row["endpoint"],
            row["kind"],
            str(row["memory_free"] >> 20),
            str(row["memory_total"] >> 20),
            row["protocol"],
            row["server"] + level,
            row["description"],
        )
        table.add_row(*map(Text, cells))  # a plain string may be markup: [fd00::1]:50052
    return table
