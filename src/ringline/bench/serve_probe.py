"""How long an API takes for small questions: `python -m ringline.bench.serve_probe PORT COUNT`.

A process of its own, so that what it measures is not its own threads waiting for each other. Prints
one JSON object: {path: [seconds, ...]}.
"""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Final

from ringline.bench.programs import HOST
from ringline.errors import PeerError

__all__ = ["PATHS", "Probe", "probe"]

PATHS: Final = ("/health", "/v1/models")
_PAUSE: Final = 0.05
_PATIENCE: Final = 120.0


class Probe:
    """The process, from its start on."""

    def __init__(self, port: int, count: int) -> None:
        """Start it.

        Args:
            port: of the API on loopback.
            count: how often each path is asked for.
        """
        command = [sys.executable, "-m", "ringline.bench.serve_probe", str(port), str(count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE)

    def result(self) -> Mapping[str, list[float]]:
        """Wait for its end; what it measured.

        Raises:
            PeerError: it failed, or took too long.
        """
        try:
            output, _ = self._process.communicate(timeout=_PATIENCE)
        except subprocess.TimeoutExpired:
            self.close()
            raise PeerError(f"the API's probe took longer than {_PATIENCE:g} s") from None
        if self._process.returncode:
            raise PeerError("the API did not answer its probe")
        found: dict[str, list[float]] = json.loads(output)
        return found

    def close(self) -> None:
        """End it, whatever it does."""
        self._process.kill()
        self._process.communicate()


def probe(port: int, count: int) -> dict[str, list[float]]:
    """Ask for each path so often, over a new connection each time as a balancer does."""
    found: dict[str, list[float]] = {path: [] for path in PATHS}
    for _ in range(count):
        for path, seconds in found.items():
            began = time.perf_counter()
            connection = http.client.HTTPConnection(HOST, port, timeout=_PATIENCE)
            connection.request("GET", path)
            response = connection.getresponse()
            response.read()
            seconds.append(time.perf_counter() - began)
            connection.close()
            if response.status != http.client.OK:
                raise PeerError(f"the API answered {path} with {response.status}")
            time.sleep(_PAUSE)
    return found


if __name__ == "__main__":
    print(json.dumps(probe(int(sys.argv[1]), int(sys.argv[2]))))
