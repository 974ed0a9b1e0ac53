"""Capture the golden bytes again: `python -m tests.peers.capture` writes tests/golden/.

The stock client (exercise.py) talks to the stock server through the recorder. Every frame is stored
as it went over the wire; index.json holds what the client meant by it. A frame of more than 64 KiB
is stored without its data, which its meaning describes; its whole length and digest stay on record.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.peers import stock_library
from tests.peers.golden import FOLDER, INDEX
from tests.peers.processes import run_python, stock_server
from tests.peers.recorder import COMMANDS, Exchange, recording_proxy

MOST_STORED = 1 << 16
DATA_START = 9 + 296 + 1 + 8  # of SET_TENSOR: head, tensor, cache flag, offset


def main() -> int:
    """Record, compare with what the client says it sent, write."""
    with (
        tempfile.TemporaryDirectory() as cache,
        stock_server(cache=Path(cache)) as (server,),
        recording_proxy(server.endpoint) as recording,
    ):
        printed = run_python(["-m", "tests.peers.exercise", recording.endpoint])
    meanings = json.loads(printed)
    check(recording.exchanges, meanings)
    for old in FOLDER.glob("*.bin"):
        old.unlink()
    messages = [
        message
        for number, exchange in enumerate(recording.exchanges)
        for message in write(number, exchange, meanings[number])
    ]
    index = {"captured_with": versions(), "messages": messages}
    INDEX.write_text(json.dumps(index, indent=1) + "\n")
    print(f"{len(messages)} frames of {len(recording.exchanges)} exchanges in {FOLDER}")
    return 0


def check(exchanges: Sequence[Exchange], meanings: Sequence[dict[str, Any]]) -> None:
    """Compare the commands on the wire with those that the client says it sent.

    Raises:
        SystemExit: they differ, or one of the base commands is missing.
    """
    seen = [exchange.command for exchange in exchanges]
    meant = [meaning["command"] for meaning in meanings]
    if seen != meant:
        raise SystemExit(f"on the wire: {seen}\nmeant:       {meant}")
    missing = set(COMMANDS) - set(seen)
    if missing:
        raise SystemExit(f"never sent: {sorted(missing)}")


def write(number: int, exchange: Exchange, meaning: dict[str, Any]) -> list[dict[str, Any]]:
    """Store the frames of one exchange; their entries in the index."""
    entries = []
    for direction, frame in (("request", exchange.request), ("reply", exchange.reply)):
        if frame is None:
            continue
        file = f"{number:02}-{meaning['name']}.{direction}.bin"
        stored = frame if len(frame) <= MOST_STORED else frame[:DATA_START]
        (FOLDER / file).write_bytes(stored)
        entries.append(
            {
                "exchange": number,
                "name": meaning["name"],
                "command": exchange.command,
                "id": COMMANDS.index(exchange.command),
                "direction": direction,
                "file": file,
                "size": len(frame),
                "stored": len(stored),
                "sha256": hashlib.sha256(frame).hexdigest(),
                "fields": meaning[direction],
            }
        )
    return entries


def versions() -> dict[str, str]:
    """What the bytes were captured with."""
    return {
        "llama_cpp_python": importlib.metadata.version("llama_cpp_python"),
        "ggml": stock_library.load().base.ggml_version().decode(),
        "protocol": "7.0.0",
    }


if __name__ == "__main__":
    sys.exit(main())
