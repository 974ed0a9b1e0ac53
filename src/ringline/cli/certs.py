"""`ringline certs`: a ring's CA, and a certificate for each of its machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from ringline.net.certificates import Issued, make_authority, make_certificate

app = typer.Typer(add_completion=False, no_args_is_help=True)

_CA_DAYS: Final = 3650
_NODE_DAYS: Final = 825
#: a date that every program that reads certificates can hold.
_MOST_DAYS: Final = 36500

_Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Folder of the ring's CA.")]
_Force = Annotated[bool, typer.Option("--force", help="Replace files that exist.")]


@app.callback()
def certs() -> None:
    """Make the certificates of a ring with TLS."""


@app.command()
def init(
    folder: _Folder,
    name: Annotated[str, typer.Option("--name", help="Name of the CA.")] = "ringline ring",
    days: Annotated[
        int, typer.Option("--days", min=1, max=_MOST_DAYS, help="How long it is valid.")
    ] = _CA_DAYS,
    force: _Force = False,
) -> None:
    """Make a ring's CA: ca.pem, which each machine gets, and ca-key.pem, which stays here.

    Whoever has ca-key.pem can let machines into the ring.
    """
    _say(make_authority(folder, name=name, days=days, force=force))


@app.command()
def node(
    folder: _Folder,
    name: Annotated[str, typer.Argument(metavar="NAME", help="Host name or address of a machine.")],
    hosts: Annotated[
        list[str] | None,
        typer.Argument(metavar="[HOST]...", help="More names and addresses it is dialled by."),
    ] = None,
    days: Annotated[
        int,
        typer.Option(
            "--days", min=1, max=_MOST_DAYS, help="How long it is valid, at most as the CA."
        ),
    ] = _NODE_DAYS,
    force: _Force = False,
) -> None:
    """Make a machine's certificate, a node's or the coordinator's: NAME.pem and NAME-key.pem.

    A client compares what it dials with these names: give each name and address that stands in
    --rpc. The machine needs NAME.pem, NAME-key.pem and ca.pem.
    """
    _say(make_certificate(folder, name, hosts or (), days=days, force=force))


def _say(issued: Issued) -> None:
    print(f"certificate  {issued.certificate}")
    print(f"key          {issued.key}")
    if issued.names:
        print(f"valid for    {', '.join(issued.names)}")
    print(f"until        {issued.expires:%Y-%m-%d %H:%M} UTC")
