"""Scrapes for the tests: a metrics page as values by name and labels, by Prometheus' own parser."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

from tests.peers.processes import Peer, patience

#: values by name of the sample and its labels, sorted.
Samples = Mapping[tuple[str, tuple[tuple[str, str], ...]], float]


def metrics_url(node: Peer) -> str:
    """Where a node that was started with --metrics-port serves its metrics."""
    (line,) = [line for line in node.log().splitlines() if line.startswith("  metrics ")]
    return line.split()[-1]


def page(url: str) -> str:
    """The page, as Prometheus gets it."""
    with urllib.request.urlopen(url, timeout=patience(60)) as answer:
        return str(answer.read().decode())


def families(text: str) -> dict[str, tuple[str, str, set[str]]]:
    """Name of each metric -> type, help, labels of its samples; a counter's name with _total."""
    found = {}
    for family in text_string_to_metric_families(text):
        name = family.name + ("_total" if family.type == "counter" else "")
        labels = {label for sample in family.samples for label in sample.labels}
        found[name] = family.type, family.documentation, labels - {"le"}
    return found


def scrape(url: str) -> Samples:
    """All samples of a page."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page(url))
        for sample in family.samples
    }


def value(samples: Samples, name: str, /, **labels: str) -> float:
    """One value; 0 where it is not there."""
    return samples.get((name, tuple(sorted(labels.items()))), 0.0)
