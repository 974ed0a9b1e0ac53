"""ringline's own coordinator as a process of its own, with the command line of stock_client.py.

    python -m tests.peers.ringline_client --model FILE --workload decode --rpc 127.0.0.1:50052,...

It runs the same lines of workloads.py as the stock client does, over ringline's devices; `--hub`
sends every hidden state through this process. Prints one JSON object: `{"ids": {name: [id, ...]},
"paths": {path: hidden states}}`, with `--time` also `"timings"`. What ringline raises ends it with
one sentence and exit code 1.
"""

from __future__ import annotations

import argparse
import json
import sys

import llama_cpp.llama_cpp as llama

from ringline.client.counters import Traffic
from ringline.client.edge import Path
from ringline.client.ring import RemoteDevices
from ringline.errors import RinglineError
from ringline.net.endpoint import parse_endpoints
from tests.peers.decoder import DecodeError, silence
from tests.peers.stock_client import shares
from tests.peers.workloads import WORKLOADS, Timings, run


def main() -> int:
    """Run one workload and print its ids."""
    options = parse_arguments()
    silence()
    llama.llama_backend_init()
    timings = Timings()
    try:
        report = run_over_ring(options, timings)
    except RinglineError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    llama.llama_backend_free()
    if options.time:
        report["timings"] = timings.summary()
    print(json.dumps(report))
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line of the stock client, and `--hub`."""
    parser = argparse.ArgumentParser(description="run a workload with ringline's coordinator")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--rpc", required=True, help="endpoints, separated by commas")
    parser.add_argument("-ts", "--tensor-split", type=shares, help="shares, separated by commas")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="add medians of the step times")
    parser.add_argument("--hub", action="store_true", help="no hidden state from node to node")
    return parser.parse_args()


def run_over_ring(options: argparse.Namespace, timings: Timings) -> dict[str, object]:
    """Run the workload over the nodes; its ids, and the paths that hidden states took.

    Raises:
        RinglineError: a node failed. DecodeError: libllama refused, and no node is to blame.
    """
    path = Path.HUB if options.hub else None
    with (
        RemoteDevices(parse_endpoints(options.rpc), path=path) as ring,
        ring.lane() as lane,  # connections of its own, as every context of the engine has
        lane.bound(),
    ):
        try:
            ids = run(
                options.workload,
                options.model,
                [handle.address for handle in ring.handles],
                tensor_split=options.tensor_split,
                n_threads=options.threads,
                timings=timings,
                after_decode=ring.check,
            )
        except DecodeError:
            ring.failures.explain()
            raise
        return {"ids": ids, "paths": Traffic.total(ring.counters.snapshot().values()).paths}


if __name__ == "__main__":
    sys.exit(main())
