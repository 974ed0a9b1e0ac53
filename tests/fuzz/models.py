"""The models whose graphs are recorded, and what is done with each: a run over a node.

Small, with random weights: those of tools/make_model.py, of tools/any_model.py (all sorts of
attention, experts, state spaces, linear attention) and one of embeddings.
"""

from __future__ import annotations

from pathlib import Path

import make_model
from any_model import make_any_model
from make_model import ModelSpec
from ringline import Ring
from ringline.client.thin import Parts
from ringline.engine.ring_context import RingContext
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.pooling import Pooling
from tests.encoder_model import make_encoder
from tests.test_architectures import ARCHITECTURES
from tests.thin_rows import N_CTX, Rows

SPECS = {
    "llama": ModelSpec(layers=2, tied=True),
    "llama q4": ModelSpec(layers=2, type="q4_0"),
    "experts": ModelSpec(layers=2, type="q8_0", experts=4),
    "qwen2": ModelSpec(arch="qwen2", layers=2, type="f16"),
    "qwen3": ModelSpec(arch="qwen3", layers=2, type="q8_0"),
    "gemma3": ModelSpec(arch="gemma3", layers=2, type="q8_0"),
}
#: a scene that no model made: a graph of one node for each op, as often as its share of the cases.
OPS = ("every op",) * 4
#: a model of embeddings, BERT's way: no cache, and its vectors are pooled.
ENCODER = "encoder"
#: what the tests play, who have less time.
FEW = (*SPECS, *OPS, ENCODER, "gpt-oss", "mamba2", "rwkv7", "qwen3next")
ALL = (*SPECS, *OPS, ENCODER, *ARCHITECTURES)
N_ROWS = 2
#: so many that every kind of sampler of thin_rows.py is among them.
N_SAMPLERS = 7


def make(path: Path, name: str) -> Path:
    """Write the model of a name."""
    if name in SPECS:
        return make_model.make_model(path, SPECS[name])
    return make_encoder(path) if name == ENCODER else make_any_model(path, name)


def ways_of(name: str) -> tuple[bool, ...]:
    """With flash attention, and for some models without it too."""
    return (True,) if name in ARCHITECTURES else (True, False)


def run(endpoint: str, path: Path, *, flash: bool, pooled: bool) -> None:
    """A prompt and some steps, in the way of level 4: every graph and every input as it is."""
    pooling = Pooling.MEAN if pooled else None
    with (
        Ring([endpoint], parts=Parts.none()) as ring,
        ring.place(path, devices=ring.devices, repack=False) as placed,
        placed.remote.lane() as lane,
        lane.bound(),
        Context(placed.model, **_sizes(N_ROWS), flash_attention=flash, pooling=pooling) as context,
    ):
        if pooled:
            _embed(context)
        elif placed.model.n_vocab > 300:  # what Rows makes its prompts of
            Rows(context, N_ROWS).run(2)
        else:
            _say(context)
        placed.remote.check()


def _embed(context: Context) -> None:
    """Texts of two lengths side by side, each whole."""
    for length in (5, 20):
        batch = Batch(context.n_batch)
        for row in range(N_ROWS):
            batch.add_run(range(3, 3 + length + row), 0, row, all_rows=True)
        context.decode(batch)


def _say(context: Context) -> None:
    """A prompt in pieces for one row, then both rows, token by token."""
    batch = Batch(context.n_batch)
    batch.add_run(range(3, 83), 0, logits_last=True)
    context.decode(batch)
    for step in range(3):
        batch.clear()
        batch.add(5 + step, 80 + step, logits=True)
        batch.add(9 + step, step, (1,), logits=True)
        context.decode(batch)


def run_sampled(endpoints: list[str], path: Path) -> None:
    """Embeddings and samplers at the nodes, each command by itself."""
    with (
        Ring(endpoints, parts=Parts(codec=False)) as ring,
        ring.place(path, devices=ring.devices, repack=False) as placed,
        RingContext(placed.model, placed.remote, **_sizes(N_SAMPLERS)) as context,
    ):
        Rows(context, N_SAMPLERS).run(2)


def _sizes(n_rows: int) -> dict[str, int]:
    n_ctx = n_rows * N_CTX
    return {"n_ctx": n_ctx, "n_batch": 512, "n_ubatch": 64, "n_seq_max": n_rows, "n_threads": 1}
