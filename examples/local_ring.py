"""A ring of three nodes on this machine, and a text from it.

Run: python examples/local_ring.py MODEL.gguf
"""

import sys

from ringline import Ring


def main(path: str) -> None:
    with Ring.local(stages=3) as ring, ring.load(path) as model:
        for stage in model.stages:
            print(f"{stage.device} at {stage.endpoint}: {stage.n_layers} layers", file=sys.stderr)
        for piece in model.generate("Once upon a time", n_predict=48):
            print(piece, end="", flush=True)
        print()


main(sys.argv[1])
