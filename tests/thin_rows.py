"""Rows that decode together, each with a sampler of its own: what one context makes of them.

Prompts differ in length, rows leave and come back with another text, and one row's text is long
enough for the KV window to grow. The batches are the same whatever decodes them.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from ringline.llama.batch import Batch
from ringline.llama.choice import Wanted
from ringline.llama.context import Context
from ringline.llama.sampler import Sampler, SamplingParams

#: libllama looks at the KV cache through a window that grows by so many tokens.
WINDOW = 256
#: tokens of one row's context.
N_CTX = 512
GRAMMAR = 'root ::= ("a" | "b" | " " | "c")+'
SAMPLING = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=0.9, seed=7),
    SamplingParams(temperature=0.0, repeat_penalty=1.3, frequency_penalty=0.2),
    SamplingParams(temperature=1.1, seed=3, xtc_probability=0.5, xtc_threshold=0.01, top_k=0),
    SamplingParams(temperature=0.7, seed=5, dry_multiplier=0.8, logit_bias={300: 2.0, 301: -5.0}),
    SamplingParams(temperature=0.8, seed=9, grammar=GRAMMAR),
    SamplingParams(temperature=1.0, seed=11, mirostat=2),
)


@dataclass(frozen=True)
class Told:
    """One token of a row and, where asked for, how likely it and the likeliest ones were."""

    token: int
    logprobs: tuple[float, ...] = ()


class Rows:
    """`n_rows` rows over one context; run() gives what each of them says."""

    def __init__(self, context: Context, n_rows: int, *, greedy: bool = False) -> None:
        self._context = context
        self._batch = Batch(context.n_batch)
        self._params = SAMPLING[:1] if greedy else SAMPLING
        self._draw = random.Random(5)
        self._positions = [0] * n_rows
        self._samplers: list[Sampler] = []
        self.said: list[list[Told]] = [[] for _ in range(n_rows)]

    def run(self, n_steps: int) -> list[list[Told]]:
        """Prompts, steps, a row that begins anew, and steps through the growth of the window."""
        rows = range(len(self.said))
        self._samplers = [self._sampler(row) for row in rows]
        self._decode({row: self._prompt(3 + row % 5, row) for row in rows})
        self._steps(n_steps)
        self._begin_anew(rows[-1])
        self._steps(n_steps)
        self._decode({0: [self.said[0][-1].token, *self._prompt(WINDOW - self._positions[0] - 3)]})
        self._steps(6)
        for sampler in self._samplers:
            sampler.close()
        return self.said

    def _sampler(self, row: int) -> Sampler:
        return Sampler(self._context.model, self._params[row % len(self._params)])

    def _begin_anew(self, row: int) -> None:
        self._samplers[row].close()
        self._samplers[row] = self._sampler(row)
        self._context.seq_rm(row)
        self._positions[row] = 0
        self._decode({row: self._prompt(4, row)})

    def _steps(self, count: int) -> None:
        for _ in range(count):
            self._decode({row: [told[-1].token] for row, told in enumerate(self.said)})

    def _prompt(self, n_tokens: int, row: int | None = None) -> list[int]:
        tokens = self._draw.choices(range(300, self._context.model.n_vocab), k=n_tokens)
        if row is not None:
            self._samplers[row].accept_all(tokens)
        return tokens

    def _decode(self, runs: dict[int, Sequence[int]]) -> None:
        self._batch.clear()
        wanted = []
        for row, tokens in runs.items():
            index = self._batch.add_run(tokens, self._positions[row], row, logits_last=True)
            self._positions[row] += len(tokens)
            wanted.append(Wanted(index, self._samplers[row], 3 if row % 4 == 1 else None))
        choices = self._context.step(self._batch, wanted)
        for row, choice in zip(runs, choices, strict=True):
            found = choice.logprobs
            described = () if found is None else (found.logprob, *found.logprobs.tolist())
            self.said[row].append(Told(choice.checked(), described))
