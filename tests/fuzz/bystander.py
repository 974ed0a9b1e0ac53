"""The second client: decodes over a node all the while, and compares every token with this CPU's.

    python -m tests.fuzz.bystander 127.0.0.1:50052 model.gguf

Runs until its standard input ends, then prints `{"rounds", "tokens", "wrong"}`. An error of the
node ends it with a sentence and exit code 1.
"""

from __future__ import annotations

import json
import select
import sys
import time
from pathlib import Path

import numpy as np

from ringline import Ring
from ringline.engine.ring_context import RingContext
from ringline.errors import RinglineError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model
from tests.rings import greedy

SIZES = {"n_ctx": 256, "n_batch": 64, "n_ubatch": 64, "n_threads": 1}
PROMPT = [1, *range(300, 320)]
N_PREDICT = 32
#: seconds between two tokens.
PAUSE = 0.01


def main() -> int:
    """Compare until standard input ends."""
    endpoint, path = sys.argv[1], Path(sys.argv[2])
    expected = _said_here(path)
    rounds = wrong = 0
    try:
        with (
            Ring([endpoint]) as ring,
            ring.place(path, devices=ring.devices, repack=False) as placed,
            RingContext(placed.model, placed.remote, **SIZES) as context,
        ):
            print("decodes", flush=True)
            while not select.select([sys.stdin], [], [], 0)[0]:
                said = greedy(context, PROMPT, N_PREDICT, before_step=_pause)
                rounds += 1
                wrong += sum(one != other for one, other in zip(said, expected, strict=True))
    except RinglineError as error:
        print(f"the second client failed after {rounds} rounds: {error}", file=sys.stderr)
        return 1
    print(json.dumps({"rounds": rounds, "tokens": rounds * N_PREDICT, "wrong": wrong}))
    return 0


def _pause(_: int) -> None:
    """Leave the other client some of the processor."""
    time.sleep(PAUSE)


def _said_here(path: Path) -> list[int]:
    """What the local CPU says."""
    ids: list[int] = []
    with Model.load(path, repack=False) as model, Context(model, **SIZES) as context:
        batch = Batch(context.n_batch)
        batch.add_run(PROMPT, 0, logits_last=True)
        for step in range(N_PREDICT):
            context.decode(batch)
            ids.append(int(np.argmax(context.logits())))
            batch.clear()
            batch.add(ids[-1], len(PROMPT) + step, logits=True)
    return ids


if __name__ == "__main__":
    sys.exit(main())
