"""Settings that come from the environment, and the deadlines of the house. Times are seconds.

Read when asked for, never cached at import: a test or a user may change the environment. Each
variable stands in docs/settings.md; a test compares the two.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = [
    "BULK_TIMEOUT",
    "CONNECT_TIMEOUT",
    "HELLO_TIMEOUT",
    "PING_INTERVAL",
    "TLS_VARIABLES",
    "VARIABLES",
    "api_keys",
    "cache_folder",
    "debug_level",
    "level_5_parts",
    "p2p_enabled",
    "reply_timeout",
    "stats_wanted",
    "tls_files",
]

#: name -> what it does; docs/settings.md is compared with it.
VARIABLES = {
    "RINGLINE_P2P": "0 sends every hidden state through the coordinator (hub path)",
    "GGML_RPC_P2P": "the same, under the name of the seed; RINGLINE_P2P wins",
    "RINGLINE_PARTS": "all, none, or some of codec,rows,sampling: what of level 5 is used",
    "RINGLINE_STATS": "1 prints the traffic table at the end, like --stats",
    "GGML_RPC_STATS": "the same, under the name of the seed; RINGLINE_STATS wins",
    "RINGLINE_DEBUG": "1 logs commands and shows tracebacks, 2 adds sizes and times, 3 adds bytes",
    "RINGLINE_CACHE": "folder for models and built wheels (default: XDG cache folder/ringline)",
    "RINGLINE_API_KEY": "keys of `ringline api`, with commas; --api-key wins",
    "RINGLINE_TIMEOUT": "seconds to wait for a node's reply before the step fails (default: 120)",
    "RINGLINE_TLS_CERT": "certificate of this machine in a ring with TLS, a PEM file (--tls-cert)",
    "RINGLINE_TLS_KEY": "private key of that certificate, a PEM file (--tls-key)",
    "RINGLINE_TLS_CA": "certificate of the ring's CA, a PEM file (--tls-ca)",
}

#: certificate, key and CA; TLS is on where they are set.
TLS_VARIABLES = ("RINGLINE_TLS_CERT", "RINGLINE_TLS_KEY", "RINGLINE_TLS_CA")
#: from the first byte to the end of HELLO, both sides: one absolute deadline.
HELLO_TIMEOUT = 10.0
#: to open a TCP connection.
CONNECT_TIMEOUT = 5.0
#: a client that has nothing to say to a node says PING this often (server.limits.IDLE_TIMEOUT).
PING_INTERVAL = 60.0
#: for a message that has begun: the longest silence between two of its bytes.
BULK_TIMEOUT = 30.0

_FALSE = {"0", "off", "no", "false"}
_TRUE = {"1", "on", "yes", "true"}


def _flag(names: tuple[str, ...], default: bool) -> bool:
    for name in names:
        value = os.environ.get(name, "").strip().lower()
        if value in _FALSE:
            return False
        if value in _TRUE:
            return True
    return default


def p2p_enabled() -> bool:
    """Whether hidden states may go straight from node to node."""
    return _flag(("RINGLINE_P2P", "GGML_RPC_P2P"), default=True)


def level_5_parts() -> str:
    """Which parts of extension level 5 are used, in words."""
    return os.environ.get("RINGLINE_PARTS", "").strip() or "all"


def stats_wanted() -> bool:
    """Whether the environment asks for the traffic table."""
    return _flag(("RINGLINE_STATS", "GGML_RPC_STATS"), default=False)


def api_keys() -> tuple[str, ...]:
    """Keys that clients of the API server have to bring; none: they need not."""
    keys = os.environ.get("RINGLINE_API_KEY", "").split(",")
    return tuple(key.strip() for key in keys if key.strip())


def debug_level() -> int:
    """RINGLINE_DEBUG as a number 0 to 3; anything that is no number counts as 0."""
    value = os.environ.get("RINGLINE_DEBUG", "")
    return min(int(value), 3) if value.isdigit() else 0


def reply_timeout() -> float:
    """Seconds that the coordinator waits for a node's reply; a graph may be computing meanwhile."""
    try:
        seconds = float(os.environ.get("RINGLINE_TIMEOUT", "120"))
    except ValueError:
        return 120.0
    return seconds if seconds > 0 else 120.0


def cache_folder() -> Path:
    """The folder for what can be fetched or built again; it is not created here."""
    chosen = os.environ.get("RINGLINE_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ringline"


def tls_files() -> tuple[str, str, str]:
    """Paths of certificate, key and CA, "" where the environment names none."""
    cert, key, ca = (os.environ.get(name, "").strip() for name in TLS_VARIABLES)
    return cert, key, ca
