"""The commands of docs/tls.md make a ring as they stand there, but for address and folder."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from tests.commands import ringline
from tests.peers.processes import ROOT, ringline_node


def commands(folder: Path) -> list[list[str]]:
    """The words of each command, without `ringline`; files are in `folder`, the node is here."""
    text = (ROOT / "docs" / "tls.md").read_text("utf-8").replace("\\\n", " ")
    lines = [line.strip() for line in text.splitlines() if line.startswith("    ringline ")]
    found = [shlex.split(line)[1:] for line in lines]
    assert [words[0] for words in found] == ["certs", "certs", "certs", "serve", "generate"]
    return [[_here(word, folder) for word in words] for words in found]


def _here(word: str, folder: Path) -> str:
    if word == "ring" or word.endswith(".pem"):
        return str(folder / word.removeprefix("ring").removeprefix("/"))
    return word.replace("192.168.1.10", "127.0.0.1")


@pytest.mark.model
def test_five_commands_make_a_secure_ring(tmp_path, model_path):
    *certs, serve, generate = commands(tmp_path / "ring")
    for words in certs:
        assert ringline(*words).code == 0
    with ringline_node(*serve[1:], "--threads=1") as node:
        words = [word.replace("127.0.0.1:50052", node.endpoint) for word in generate]
        words[words.index("model.gguf")] = str(model_path)
        done = ringline(*words, "-n", "4")
        assert done.code == 0, done.err
        assert done.out.strip()
        assert "shows the certificate of coordinator" in node.log()
