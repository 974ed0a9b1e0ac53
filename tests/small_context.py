"""A small model and a context that has decoded something, for tests of what follows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import make_model
from make_model import ModelSpec
from ringline.llama.batch import Batch
from ringline.llama.context import Context
from ringline.llama.model import Model


@contextmanager
def small_context(folder: Path) -> Iterator[Context]:
    """A context that has decoded three tokens of a random model, which is written to `folder`."""
    path = make_model.make_model(folder / "small.gguf", ModelSpec())
    with Model.load(path) as model, Context(model, n_ctx=256, n_threads=1) as context:
        batch = Batch(3)
        batch.add_run([5, 6, 7], 0, logits_last=True)
        context.decode(batch)
        yield context
