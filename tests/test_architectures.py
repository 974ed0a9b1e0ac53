"""Graphs of many architectures pass the rules: over a ring the same tokens as on this CPU alone.

Each brings ops, shapes or views of its own: attention in all its forms, experts, state spaces,
linear attention, biases, layer norms. Random weights; the texts mean nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from any_model import make_any_model
from ringline.client.ring import RemoteDevices
from ringline.errors import CallerError
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model
from ringline.net.endpoint import Endpoint
from tests.peers.processes import Peer, ringline_node

ARCHITECTURES = (
    "gpt2",  # learned positions, biases, LayerNorm
    "phi2",  # parallel residual
    "bloom",  # ALiBi
    "chatglm",  # GLU in one matrix
    "command-r",
    "apertus",  # xIELU
    "llama4",  # chunked attention, experts beside a shared one
    "gpt-oss",  # sinks, biases of experts
    "qwen3moe",
    "deepseek2",  # latent attention
    "minicpm3",
    "mamba",
    "mamba2",
    "jamba",  # state spaces and attention in turns
    "falcon-h1",  # both in one layer
    "granitehybrid",
    "lfm2",  # short convolutions
    "rwkv6",
    "rwkv7",
    "kimi-linear",
    "qwen3next",  # gated delta net
)
#: without flash attention, softmax and two products take its place.
CASES = [(arch, True) for arch in ARCHITECTURES] + [
    (arch, False) for arch in ("gpt2", "bloom", "gpt-oss", "deepseek2", "falcon-h1")
]
N_PREDICT = 4
PROMPT = range(3, 53)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Sequence[Peer]]:
    with ringline_node("--threads=1") as first, ringline_node("--threads=1") as second:
        yield first, second


def greedy(
    path: Path,
    devices: Sequence[int],
    flash: bool,
    check: Callable[[], None] = lambda: None,
) -> list[int]:
    """A prompt in pieces, then single tokens; two sequences have room, so states are gathered."""
    with (
        Model.load(
            path, devices=devices, tensor_split=[1.0] * len(devices), repack=False, check=check
        ) as model,
        Context(
            model,
            n_ctx=256,
            n_batch=64,
            n_ubatch=32,
            n_seq_max=2,
            n_threads=1,
            flash_attention=flash,
            check=check,
        ) as context,
    ):
        batch, ids = Batch(64), []
        batch.add_run(list(PROMPT), 0, logits_last=True)
        for step in range(N_PREDICT):
            context.decode(batch)
            ids.append(int(np.argmax(context.logits())))
            batch.clear()
            batch.add(ids[-1], len(PROMPT) + step, logits=True)
        return ids


@pytest.mark.parametrize(("arch", "flash"), CASES)
def test_an_architecture_writes_over_a_ring_what_it_writes_here(nodes, tmp_path, arch, flash):
    path = make_any_model(tmp_path / f"{arch}.gguf", arch)
    here = greedy(path, [], flash)
    endpoints = [Endpoint.parse(node.endpoint) for node in nodes]
    with RemoteDevices(endpoints) as ring, ring.lane() as lane, lane.bound():
        devices = [handle.address for handle in ring.handles]
        try:
            assert greedy(path, devices, flash, ring.check) == here
        except CallerError:
            ring.check()  # says why
            raise


def test_an_architecture_that_nobody_knows_is_no_model(tmp_path):
    with pytest.raises(CallerError, match="makes no model"):
        make_any_model(tmp_path / "none.gguf", "nosuch")
