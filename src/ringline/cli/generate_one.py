"""One prompt: its text is written as it comes."""

from __future__ import annotations

import json
import sys
from typing import Any

from ringline.cli.talk import progress_bar, say
from ringline.engine.generation import Generation
from ringline.engine.job import Request
from ringline.engine.ring_model import RingModel

__all__ = ["generate_one"]


def generate_one(loaded: RingModel, prompt: str, request: Request, *, as_json: bool) -> None:
    """Continue a prompt, and say how fast it went.

    Args:
        loaded: a model with a context.
        prompt: text.
        request: what is wanted of it.
        as_json: print one object at the end instead of text.

    Raises:
        RinglineError: the prompt does not fit, or a node failed.
    """
    with progress_bar("prompt") as update:

        def progress(done: int, total: int) -> None:
            update(done / total)

        run = loaded.generate(
            prompt, n_predict=request.n_predict, sampling=request.sampling, progress=progress
        )
        pieces = _write(run, quiet=as_json)
    _say_speed(run)
    if as_json:
        print(json.dumps(_report(loaded, run, "".join(pieces)), ensure_ascii=False))


def _write(run: Generation, *, quiet: bool) -> list[str]:
    pieces = []
    for piece in run:
        pieces.append(piece)
        if not quiet:
            sys.stdout.write(piece)
            sys.stdout.flush()
    if not quiet:
        print()
    return pieces


def _say_speed(run: Generation) -> None:
    say(
        f"prompt {len(run.prompt)} tokens, {run.prompt_tokens_per_second:.1f} tok/s; "
        f"generated {len(run.ids)} tokens, {run.tokens_per_second:.1f} tok/s; "
        f"{run.stop_reason or 'stopped'}"
    )


def _report(loaded: RingModel, run: Generation, text: str) -> dict[str, Any]:
    step = loaded.window.per_step()
    return {
        "text": text,
        "ids": run.ids,
        "prompt_tokens": len(run.prompt),
        "stop_reason": run.stop_reason,
        "stages": [
            {"device": s.device, "endpoint": s.endpoint, "layers": s.n_layers}
            for s in loaded.stages
        ],
        "prompt_seconds": run.prompt_seconds,
        "token_seconds": run.token_seconds,
        "steps": loaded.window.steps,
        "per_step": {
            "commands": step.commands,
            "bytes_out": step.bytes_out,
            "bytes_in": step.bytes_in,
            "paths": step.paths,
        },
    }
