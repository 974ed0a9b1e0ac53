"""What a step costs the coordinator: all through it, hidden states past it, token ids alone.

Run: python examples/traffic.py MODEL.gguf
"""

import sys

from ringline import Ring
from ringline.client.edge import Path
from ringline.client.thin import Parts
from ringline.engine.local_nodes import LocalNodes

WAYS = {
    "hub": (Path.HUB, Parts.none()),
    "direct": (Path.DIRECT, Parts.none()),
    "thin": (Path.RENDEZVOUS, Parts.all()),
}


def main(path: str) -> None:
    with LocalNodes(3) as nodes:
        for name, (way, parts) in WAYS.items():
            with Ring(nodes.endpoints, path=way, parts=parts) as ring, ring.load(path) as model:
                text = "".join(model.generate("Water boils because", n_predict=24))
                step = model.window.per_step()
            print(f"{name:>6}: {step.bytes_out:8,.0f} bytes out, {step.bytes_in:8,.0f} bytes in")
            print(f"        {step.commands}\n        {text!r}")


main(sys.argv[1])
