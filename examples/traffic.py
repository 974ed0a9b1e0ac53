"""What a decode step costs the coordinator, with hidden states through it and past it.

Run: python examples/traffic.py MODEL.gguf
"""

import sys

from ringline import Ring
from ringline.engine.local_nodes import LocalNodes


def main(path: str) -> None:
    with LocalNodes(3) as nodes:
        for direct in (False, True):
            with Ring(nodes.endpoints, direct=direct) as ring, ring.load(path) as model:
                text = "".join(model.generate("Water boils because", n_predict=24))
                step = model.window.per_step()
            name = "direct" if direct else "hub"
            print(f"{name:>6}: {step.bytes_out:8,.0f} bytes out, {step.bytes_in:8,.0f} bytes in")
            print(f"        {step.commands}\n        {text!r}")


main(sys.argv[1])
