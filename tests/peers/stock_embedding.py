"""What llama_cpp itself says texts are embedded as, on this CPU: `Llama(embedding=True).embed`.

    python -m tests.peers.stock_embedding --model FILE --pooling 1 < texts.json

Reads a JSON list of texts, prints a list of vectors as they are, not normalised.
"""

from __future__ import annotations

import argparse
import json
import sys

import llama_cpp


def main() -> int:
    """Embed all texts in one batch, as an engine does it."""
    parser = argparse.ArgumentParser(description="embed texts with llama_cpp")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--pooling", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=512)
    options = parser.parse_args()
    _keep_weights_as_they_are()
    llama = llama_cpp.Llama(
        options.model,
        embedding=True,
        pooling_type=options.pooling,
        n_ctx=options.tokens,
        n_batch=options.tokens,
        n_ubatch=options.tokens,
        n_threads=1,
        n_threads_batch=1,
        flash_attn=True,
        verbose=False,
    )
    print(json.dumps(llama.embed(json.load(sys.stdin))))
    return 0


def _keep_weights_as_they_are() -> None:
    """A node never re-orders weights for speed, which rounds sums otherwise; Llama has no flag."""
    default = llama_cpp.llama_model_default_params

    def params() -> object:
        chosen = default()
        chosen.use_extra_bufts = False
        return chosen

    llama_cpp.llama_cpp.llama_model_default_params = params


if __name__ == "__main__":
    sys.exit(main())
