"""What a decode step costs the coordinator, with hidden states through it and past it.

Run: python examples/traffic.py MODEL.gguf
"""

import sys

from ringline import Ring
from ringline.client.edge import Path
from ringline.engine.local_nodes import LocalNodes


def main(path: str) -> None:
    with LocalNodes(3) as nodes:
        for way in (Path.HUB, Path.DIRECT):
            with Ring(nodes.endpoints, path=way) as ring, ring.load(path) as model:
                text = "".join(model.generate("Water boils because", n_predict=24))
                step = model.window.per_step()
            print(f"{way:>6}: {step.bytes_out:8,.0f} bytes out, {step.bytes_in:8,.0f} bytes in")
            print(f"        {step.commands}\n        {text!r}")


main(sys.argv[1])
