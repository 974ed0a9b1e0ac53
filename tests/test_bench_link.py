"""`ringline bench link`: both arms in turns, and the ratios are those of the rounds."""

from __future__ import annotations

import json
import math

from ringline.bench.link import FIGURES, LinkReport, Plan
from ringline.bench.report import Series
from tests.commands import ringline


def series(name: str, *rates: float) -> Series:
    return Series(name, name, tuple(dict.fromkeys(FIGURES, rate) for rate in rates))


def test_a_ratio_is_the_median_of_the_rounds_own_ratios():
    report = LinkReport({}, Plan(), series("plain", 100, 400, 100), series("tls", 50, 100, 75))
    assert report.ratio("set_mb_s") == 0.5
    assert report.as_json()["ratios"] == dict.fromkeys(FIGURES, 0.5)


def test_a_run_that_is_too_short_for_ticks_says_nothing_of_processor_time():
    report = LinkReport({}, Plan(), series("plain", 0, 1), series("tls", 1, 1))
    assert math.isnan(report.ratio("set_cpu_ms"))
    assert report.as_json()["ratios"] == {}


def test_both_arms_are_measured_over_real_nodes(tmp_path):
    file = tmp_path / "link.json"
    done = ringline("bench", "link", "--quick", "--rounds=2", f"--json={file}")
    assert done.code == 0, done.err
    assert "SET_TENSOR, MB/s" in done.out
    found = json.loads(file.read_text())
    assert [arm["name"] for arm in found["arms"]] == ["plain", "tls"]
    assert [len(arm["rounds"]) for arm in found["arms"]] == [2, 2]
    assert {"ping_us", "set_mb_s", "get_mb_s"} <= set(found["ratios"])
    assert all(value > 0 for value in found["ratios"].values())
    said = [line.partition(":")[0] for line in done.err.splitlines() if "written" in line]
    assert said == ["plain", "tls", "tls", "plain"]
