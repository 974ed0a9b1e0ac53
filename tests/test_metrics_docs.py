"""docs/metrics.md and the dashboard say what a node and a server that run say, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

import make_model
from make_model import ModelSpec
from tests.metrics_pages import live_pages
from tests.scraping import families

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "metrics.md"
DASHBOARD = ROOT / "deploy" / "grafana-dashboard.json"
#: what Prometheus adds to each sample.
ADDED = {"instance", "job"}


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    model = make_model.make_model(
        tmp_path_factory.mktemp("small") / "small.gguf", ModelSpec(type="q8_0")
    )
    with live_pages(model) as found:
        yield found


def documented():
    """Name -> type, labels, meaning, as the document has them."""
    found = {}
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 4 and cells[0].startswith("`ringline_"):
            name, kind, labels, meaning = cells
            assert name not in found
            found[name.strip("`")] = kind, set(filter(None, labels.split(", "))), meaning
    return found


def live(pages):
    return families(pages["node"]) | families(pages["api"])


def test_every_metric_is_documented_and_no_other(pages):
    assert set(documented()) == set(live(pages))


def test_types_labels_and_meanings_are_those_of_the_pages(pages):
    samples = {
        sample.name.removesuffix("_bucket")
        for text in pages.values()
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    for name, (kind, meaning, labels) in live(pages).items():
        documented_kind, documented_labels, documented_meaning = documented()[name]
        assert (documented_kind, documented_meaning) == (kind, meaning), name
        if name in samples:
            assert documented_labels == labels, name


def test_what_has_no_sample_in_a_healthy_ring_is_the_errors_alone(pages):
    empty = {
        family.name
        for text in pages.values()
        for family in text_string_to_metric_families(text)
        if not family.samples
    }
    assert empty == {"ringline_engine_errors", "ringline_api_engine_losses"}


def test_names_follow_the_conventions(pages):
    for name, (kind, _, _) in live(pages).items():
        assert re.fullmatch(r"ringline_(node|api|engine|stage|edge)_[a-z_]+", name)
        assert name.endswith("_total") == (kind == "counter"), name


def expressions():
    """(title, expression, legend) of all panels."""
    dashboard = json.loads(DASHBOARD.read_text())
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard["panels"]
        for target in panel.get("targets", ())
    ]


def test_each_panel_asks_for_metrics_and_labels_that_exist(pages):
    known = documented()
    types = {name: kind for name, (kind, _, _) in live(pages).items()}
    for title, expression, legend in expressions():
        names = re.findall(r"ringline_\w+", expression)
        assert names, title
        labels = set()
        for name in names:
            metric = name.removesuffix("_bucket")
            assert types.get(metric), f"{title}: {name}"
            assert (types[metric] == "histogram") == (metric != name), f"{title}: {name}"
            labels |= known[metric][1]
        used = set(re.findall(r"\{\{(\w+)\}\}", legend))
        for group in re.findall(r"by \(([^)]*)\)", expression):
            used |= {label.strip() for label in group.split(",")} - {"le"}
        assert used <= labels | ADDED, title


def test_counters_are_shown_as_rates(pages):
    types = {name: kind for name, (kind, _, _) in live(pages).items()}
    for title, expression, _ in expressions():
        for name in re.findall(r"ringline_\w+_total", expression):
            assert types[name] == "counter"
            whole = title.startswith("Restarts")
            assert whole or re.search(rf"(rate|increase)\({name}\[", expression), title


def test_panels_do_not_lie_on_each_other_and_have_numbers_of_their_own():
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = set()
    for panel in panels:
        place = panel["gridPos"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert x < 24
                assert (x, y) not in cells, panel["title"]
                cells.add((x, y))
