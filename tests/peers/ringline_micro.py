"""What micro.py measures, with ringline's client: the same calls of ggml, our buffer behind them.

python -m tests.peers.ringline_micro --rpc 127.0.0.1:50052
"""

from __future__ import annotations

import json
import sys

from ringline.client.ring import RemoteDevices
from ringline.errors import RinglineError
from ringline.net.endpoint import parse_endpoints
from tests.peers.micro import measure, parse_arguments


def main() -> int:
    """Measure the first device of a node and print the figures."""
    options = parse_arguments()
    try:
        with RemoteDevices(parse_endpoints(options.rpc)) as ring:
            figures = measure(ring.handles[0].address, options.repeat)
            ring.check()
    except RinglineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
