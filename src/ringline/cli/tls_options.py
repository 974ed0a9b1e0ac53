"""The three flags of TLS, the same for a node and for every command that talks to nodes."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["TlsCa", "TlsCert", "TlsKey"]

TlsCert = Annotated[
    str,
    typer.Option(
        "--tls-cert",
        metavar="FILE",
        help="Certificate of this machine: speak TLS. [env: RINGLINE_TLS_CERT]",
    ),
]
TlsKey = Annotated[
    str,
    typer.Option(
        "--tls-key", metavar="FILE", help="Private key of --tls-cert. [env: RINGLINE_TLS_KEY]"
    ),
]
TlsCa = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        metavar="FILE",
        help="Certificate of the ring's CA, by which the others are known. [env: RINGLINE_TLS_CA]",
    ),
]
