"""`ringline bench narrow`: a real narrow link in network namespaces, and what is left behind."""

from __future__ import annotations

import subprocess

import pytest

import make_model
from make_model import ModelSpec
from ringline.bench import netns
from ringline.bench.narrow import NarrowReport, Plan, run_narrow
from ringline.bench.narrow_side import Arm
from ringline.errors import LibraryError

needs_namespaces = pytest.mark.skipif(
    netns.obstacle() is not None, reason=netns.obstacle() or "there are namespaces"
)
THIN = Arm("thin", "rendezvous", "all", 4, 4, 0.2)
#: a window of many steps: one that began before it and ends in it must not count for much.
FAT = Arm("hub", "hub", "none", 2, 2, 1.0)


def namespaces() -> set[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    return {line.split()[0] for line in listed.stdout.splitlines() if line.startswith("ringline-")}


@needs_namespaces
def test_arms_run_over_the_whole_link_and_the_narrow_one_and_nothing_is_left(tmp_path):
    spec = ModelSpec(layers=2, vocab=2000, type="q8_0")
    model = make_model.make_model(tmp_path / "tiny.gguf", spec)
    before, said = namespaces(), []
    report = run_narrow(model, Plan("1mbit", streams=2, arms=(THIN, FAT)), say=said.append)
    assert namespaces() == before
    assert "thin: link limit" in said
    found = report.as_json()
    assert [arm["name"] for arm in found["arms"]] == ["thin", "hub"]
    assert all(arm["free_tok_s"] > 0 and arm["narrow_tok_s"] > 0 for arm in found["arms"])
    # 8 kB of logits a token: the link lets 15 of them a second through, however fast the rest is.
    assert found["arms"][1]["narrow_tok_s"] < 20
    assert found["rate"] == "1mbit"


@needs_namespaces
def test_a_rate_that_is_none_is_told_by_tc():
    before = namespaces()
    with netns.Link() as link, pytest.raises(LibraryError, match=r"tc qdisc add .* failed"):
        link.limit("much")
    assert namespaces() == before


def test_without_root_it_says_so(monkeypatch):
    monkeypatch.setattr(netns.os, "geteuid", lambda: 1000)
    with pytest.raises(LibraryError, match="cannot be made: network namespaces need root"):
        netns.Link()


def test_the_aim_is_that_of_the_thin_coordinator():
    arms = [
        {"name": "thin", "free_tok_s": 100.0, "narrow_tok_s": 85.0},
        {"name": "hub", "free_tok_s": 100.0, "narrow_tok_s": 1.0},
    ]
    (aim,) = NarrowReport({}, Plan(), arms).aims()
    assert (aim.value, aim.limit, aim.met) == (0.85, 0.9, False)
