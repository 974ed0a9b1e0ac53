"""Stands in for the program llama-server: takes its flags, becomes `ringline api`.

    python -m tests.llama_server.binary --port 8080 --ctx-size 512 --hf-repo ggml-org/...

The models of the tests are on a hub; ours of the same kind take their place, from the folder that
RINGLINE_LLAMA_MODELS names. A flag that ringline has not ends it at once, and with it the test.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Final

__all__ = ["ENCODER", "MODELS", "WRITER", "main"]

MODELS: Final = "RINGLINE_LLAMA_MODELS"
WRITER, ENCODER = "writer.gguf", "encoder.gguf"
#: what the tests ask for, and which of our models is like it. Without one llama-server is a router;
#: the tests of test_security.py that start it so ask for nothing that a model would answer.
_STANDS_FOR: Final = {
    "": WRITER,
    "ggml-org/test-model-stories260K": WRITER,
    "ggml-org/test-model-stories260K-infill": WRITER,
    "ggml-org/models/bert-bge-small/ggml-model-f16.gguf": ENCODER,
}
#: flags with a value that mean the same to us, and what we call them.
_SAME: Final = {
    "--host": "--host",
    "--port": "--port",
    "--ctx-size": "-c",
    "--batch-size": "-b",
    "--parallel": "--parallel",
    "--alias": "--alias",
    "--api-key": "--api-key",
    "--pooling": "--pooling",
    "--cors-origins": "--cors-origins",
}
#: flags that change nothing for us: defaults of requests, which each test gives or does not look
#: at, and what an engine of ours does anyway.
_WITHOUT: Final = (
    "--offline",
    "--cont-batching",
    "--no-slots",
    "--slots",
    "--jinja",
    "--no-jinja",
    "--verbose",
    "--kv-unified",
    "--metrics",
)
_WITHOUT_VALUE: Final = ("--temp", "--seed", "--n-predict", "-fa", "--threads")


def main(arguments: list[str]) -> None:
    """Become the server; does not return."""
    given = _parser().parse_args(arguments)
    given.cors_origins = given.cors_origins or "*"  # llama-server's default, not ours
    name = "/".join(filter(None, (given.hf_repo, given.hf_file)))
    if name not in _STANDS_FOR:
        sys.exit(f"no model of ours is like {name or 'none at all'}")
    command = ["-m", str(Path(os.environ[MODELS]) / _STANDS_FOR[name]), "-t", "1", "--no-repack"]
    for flag, ours in _SAME.items():
        value = getattr(given, flag.strip("-").replace("-", "_"))
        if value is not None:
            command += [ours, value]
    if given.embedding:
        command.append("--embeddings")
    if given.ubatch_size is not None and _STANDS_FOR[name] == ENCODER:
        command += ["--embedding-tokens", given.ubatch_size]
    os.execv(sys.executable, [sys.executable, "-m", "ringline", "api", *command])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for flag in (*_SAME, *_WITHOUT_VALUE, "--hf-repo", "--hf-file", "--ubatch-size"):
        parser.add_argument(flag)
    for flag in (*_WITHOUT, "--embedding"):
        parser.add_argument(flag, action="store_true")
    return parser


if __name__ == "__main__":
    main(sys.argv[1:])
