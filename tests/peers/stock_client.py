"""The stock ggml RPC client as a process of its own: plain llama_cpp and libggml-rpc, no ringline.

    python -m tests.peers.stock_client --model FILE --workload decode --rpc 127.0.0.1:50052,...

Prints one JSON object: `{"ids": {name: [id, ...]}}`, with `--time` also `"timings"`. Without
`--rpc` it runs on the local CPU, which is the reference for everything else.
"""

from __future__ import annotations

import argparse
import json
import sys

import llama_cpp.llama_cpp as llama

from tests.peers import stock_library
from tests.peers.decoder import silence
from tests.peers.workloads import WORKLOADS, Timings, run


def main() -> int:
    """Run one workload and print its ids."""
    options = parse_arguments()
    silence()
    llama.llama_backend_init()
    timings = Timings()
    ids = run(
        options.workload,
        options.model,
        connect([endpoint for endpoint in options.rpc.split(",") if endpoint]),
        tensor_split=options.tensor_split,
        n_threads=options.threads,
        timings=timings,
    )
    llama.llama_backend_free()
    report: dict[str, object] = {"ids": ids}
    if options.time:
        report["timings"] = timings.summary()
    print(json.dumps(report))
    return 0


def parse_arguments() -> argparse.Namespace:
    """The command line, with the flags of llama.cpp where it has them."""
    parser = argparse.ArgumentParser(description="run a workload with the stock ggml RPC client")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--workload", choices=sorted(WORKLOADS), required=True)
    parser.add_argument("--rpc", default="", help="endpoints, separated by commas; none: local CPU")
    parser.add_argument("-ts", "--tensor-split", type=shares, help="shares, separated by commas")
    parser.add_argument("-t", "--threads", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="add medians of the step times")
    return parser.parse_args()


def shares(text: str) -> list[float]:
    """The value of --tensor-split."""
    return [float(share) for share in text.split(",")]


def connect(endpoints: list[str]) -> list[int]:
    """The devices of all endpoints, in order; libggml-rpc is opened only when there are any."""
    if not endpoints:
        return []
    libraries = stock_library.load()
    return [
        device
        for endpoint in endpoints
        for device in stock_library.remote_devices(libraries, endpoint)
    ]


if __name__ == "__main__":
    sys.exit(main())
