"""Nodes that run elsewhere: `ringline serve`, or stock ggml-rpc-servers.

Where one of them fails, one exception names it, in a process that lives on.

Run: python examples/remote_ring.py MODEL.gguf 192.168.1.10:50052 192.168.1.11:50052
"""

import sys

from ringline import Ring
from ringline.errors import RinglineError


def main(path: str, endpoints: list[str]) -> int:
    try:
        with Ring(endpoints) as ring, ring.load(path, tensor_split=[1] * len(endpoints)) as model:
            for piece in model.generate("The capital of France is", n_predict=32):
                print(piece, end="", flush=True)
            print()
    except RinglineError as error:
        print(f"the ring failed: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main(sys.argv[1], sys.argv[2:]))
