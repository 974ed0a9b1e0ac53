"""The token ids that every arm of a comparison has to agree on: three greedy workloads.

    decode   prompts one after another in one context: a step of one token after a short prompt
    prompt   a long prompt in small ubatches: several are on their way through the stages at once
    batch    sequences side by side: one token of each in every step

`run` takes the devices as addresses, so the stock client and ringline's own coordinator run the
very same lines. Times are seconds; prompts are counted in tokens.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.peers.decoder import Decoder, Entry, open_model, tokenize

PROMPTS = (
    "The capital of France is",
    "Once upon a time, in a village by the sea, there lived",
    "Write a function that adds two numbers.\n\ndef add(a, b):",
    "Water boils at one hundred degrees. At what temperature does it freeze, and why?",
    "A list of five fruits:\n1. apple\n2.",
    "The three primary colours are red,",
    "My neighbour has a dog that",
    "In the year 1969 two men",
)
LONG_TEXT = (
    "A ring of machines holds one model between them. The first takes the words in and turns them "
    "into numbers; each of the others adds what its own layers know, and the last one names the "
    "most likely next word. None of them could hold the model alone. When a prompt is long it is "
    "cut into pieces, and while the second machine works on the first piece, the first machine has "
    "already begun with the second. "
)


@dataclass(frozen=True, slots=True)
class Workload:
    """What one workload asks of a context; sizes in tokens."""

    n_ctx: int
    n_batch: int
    n_ubatch: int
    n_seq_max: int
    n_predict: int
    n_prompts: int
    n_prompt_tokens: int | None = None  # one long prompt of exactly this length


WORKLOADS = {
    "decode": Workload(512, 512, 512, 1, n_predict=32, n_prompts=4),
    "prompt": Workload(512, 512, 64, 1, n_predict=16, n_prompts=1, n_prompt_tokens=448),
    "batch": Workload(2048, 512, 512, 8, n_predict=16, n_prompts=8),
}


@dataclass(slots=True)
class Timings:
    """Seconds that the decodes of a run took, sampling included."""

    prompts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)

    def summary(self) -> dict[str, float]:
        """Medians in milliseconds; a step of the workload `batch` is one token of each sequence."""
        return {
            "ms_per_token": 1000 * statistics.median(self.steps),
            "prompt_ms": 1000 * statistics.median(self.prompts),
            "steps": len(self.steps),
        }


def run(
    workload: str,
    model_path: str | Path,
    devices: Sequence[int] | None = None,
    *,
    tensor_split: Sequence[float] | None = None,
    n_threads: int = 1,
    timings: Timings | None = None,
    after_decode: Callable[[], None] | None = None,
) -> dict[str, list[int]]:
    """Load the model, run one workload greedily, free everything.

    Args:
        workload: a name in WORKLOADS.
        model_path: a GGUF file.
        devices: addresses of `ggml_backend_dev_t`, in the order of the stages; none: local CPU.
        tensor_split: the share of layers of each device; none: by free memory.
        n_threads: CPU threads of this process.
        timings: filled with the seconds of every decode.
        after_decode: called after every decode and before its logits are read; may raise.

    Returns:
        For each prompt, by name, the ids that followed it.

    Raises:
        DecodeError: libllama could not load the model or decode.
    """
    plan = WORKLOADS[workload]
    with open_model(model_path, devices, tensor_split) as model:
        texts = prompts(workload, lambda text: tokenize(model, text))
        decoder = Decoder(
            model,
            n_ctx=plan.n_ctx,
            n_batch=plan.n_batch,
            n_ubatch=plan.n_ubatch,
            n_seq_max=plan.n_seq_max,
            n_threads=n_threads,
        )
        with decoder:
            greedy = _Greedy(decoder, timings or Timings(), after_decode or _nothing)
            if plan.n_seq_max > 1:
                return greedy.side_by_side(texts, plan.n_predict)
            return greedy.one_by_one(texts, plan.n_predict)


def prompts(workload: str, to_tokens: Callable[[str], list[int]]) -> dict[str, list[int]]:
    """The prompts of a workload by name, as tokens."""
    plan = WORKLOADS[workload]
    if plan.n_prompt_tokens is None:
        texts = PROMPTS[: plan.n_prompts]
        return {f"prompt {n}": to_tokens(text) for n, text in enumerate(texts)}
    tokens = to_tokens(LONG_TEXT)
    while len(tokens) < plan.n_prompt_tokens:
        tokens *= 2
    return {f"{plan.n_prompt_tokens} tokens": tokens[: plan.n_prompt_tokens]}


def _nothing() -> None:
    """Stand in for an `after_decode` that was not given."""


@dataclass(frozen=True, slots=True)
class _Greedy:
    """The loops of the workloads over one context."""

    decoder: Decoder
    timings: Timings
    after_decode: Callable[[], None]

    def one_by_one(self, prompts: dict[str, list[int]], n_predict: int) -> dict[str, list[int]]:
        ids: dict[str, list[int]] = {}
        for name, prompt in prompts.items():
            self.decoder.forget()
            (ids[name],) = self._generate([prompt], n_predict)
        return ids

    def side_by_side(self, prompts: dict[str, list[int]], n_predict: int) -> dict[str, list[int]]:
        return dict(zip(prompts, self._generate(list(prompts.values()), n_predict), strict=True))

    def _generate(self, prompts: list[list[int]], n_predict: int) -> list[list[int]]:
        """Sequence i continues prompt i: all prompts in one batch, then a token of each a step."""
        entries = [
            Entry(token, sequence, position, logits=position == len(prompt) - 1)
            for sequence, prompt in enumerate(prompts)
            for position, token in enumerate(prompt)
        ]
        ids = [[token] for token in self._step(entries, self.timings.prompts)]
        for step in range(n_predict - 1):
            entries = [
                Entry(ids[sequence][-1], sequence, len(prompt) + step, logits=True)
                for sequence, prompt in enumerate(prompts)
            ]
            for sequence, token in enumerate(self._step(entries, self.timings.steps)):
                ids[sequence].append(token)
        return ids

    def _step(self, entries: list[Entry], seconds: list[float]) -> list[int]:
        """Decode one batch; the best token after each entry that asked for logits, in order."""
        start = time.perf_counter()
        self.decoder.decode(entries)
        self.after_decode()
        tokens = [self.decoder.best(index) for index, entry in enumerate(entries) if entry.logits]
        seconds.append(time.perf_counter() - start)
        return tokens
