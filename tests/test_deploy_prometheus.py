"""What deploy/ has for Prometheus, judged by Prometheus' own tool."""

from __future__ import annotations

import json
import shutil
import subprocess
from itertools import chain
from pathlib import Path

import pytest
import yaml

from tests.peers.processes import patience

DEPLOY = Path(__file__).parents[1] / "deploy"
PROMTOOL = shutil.which("promtool")

pytestmark = pytest.mark.skipif(not PROMTOOL, reason="promtool (Debian: prometheus) is missing")


def promtool(*arguments: object) -> None:
    command = [PROMTOOL, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0, done.stdout + done.stderr


def expressions() -> dict[str, list[str]]:
    """Of each panel, with the interval that Grafana fills in."""
    panels = json.loads((DEPLOY / "grafana-dashboard.json").read_text())["panels"]
    return {
        panel["title"]: [
            target["expr"].replace("$__rate_interval", "1m") for target in panel["targets"]
        ]
        for panel in panels
        if panel.get("targets")
    }


def test_prometheus_takes_the_scrape_file():
    promtool("check", "config", DEPLOY / "prometheus.yml")


def test_prometheus_understands_each_panel(tmp_path):
    rules = [
        {"record": f"panel:number_{number}", "expr": expression}
        for number, expression in enumerate(chain.from_iterable(expressions().values()))
    ]
    file = tmp_path / "rules.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    promtool("check", "rules", file)


@pytest.mark.parametrize(
    ("title", "series", "labels"),
    [
        ("Errors", "ringline_engine_errors_total", {"node": "a:1", "cause": "PeerError"}),
        ("Errors", "ringline_api_engine_losses_total", {"node": "a:1", "cause": "PeerError"}),
        ("Refusals by rule", "ringline_node_refusals_total", {"rule": "size"}),
        ("Crashes by signal", "ringline_node_crashes_total", {"cause": "SIGSEGV"}),
        ("Failed handshakes", "ringline_node_handshake_failures_total", {"reason": "timeout"}),
    ],
)
def test_the_first_of_its_kind_is_seen(title, series, labels, tmp_path):
    """increase() alone is 0 for it: a counter with labels is not there before it counts."""
    text = ",".join(f'{name}="{value}"' for name, value in labels.items())
    where = "" if title == "Errors" else ',instance="n:9465"'
    (expression,) = expressions()[title]
    shown = [
        {"labels": f"{{{text}{where}}}", "value": value, "eval_time": at}
        for at, value in (("1m30s", 1), ("5m", 0))
    ]
    queries = [
        {
            "expr": expression,
            "eval_time": one["eval_time"],
            "exp_samples": [{"labels": one["labels"], "value": one["value"]}],
        }
        for one in shown
    ]
    values = " ".join(["_"] * 6 + ["1"] * 30)  # from the first minute on
    inputs = [{"series": f'{series}{{{text},instance="n:9465"}}', "values": values}]
    tests = [{"interval": "10s", "input_series": inputs, "promql_expr_test": queries}]
    file = tmp_path / "tests.yml"
    file.write_text(yaml.safe_dump({"rule_files": [], "tests": tests}))
    promtool("test", "rules", file)
