"""The alert rules and the board in deploy/: every metric and label in them is one that docs/metrics.md has."""

from __future__ import annotations

import json
import re

import pytest

from docs_blocks import ROOT
from penstock.consumer.metrics_prometheus import PrometheusMetrics

yaml = pytest.importorskip("yaml")  # moto brings it

_ROW = re.compile(r"^\| `(\w+)` \| (counter|gauge|distribution) \|[^|]*\|([^|]*)\|", re.MULTILINE)
_USE = re.compile(r"(penstock_\w+)(?:\{([^}]*)\})?")
_OF_EVERY = {"stream", "application", "worker", "query", "instance"}
"""Labels of a whole consumer, query or process."""


@pytest.fixture(scope="module")
def known():
    """What `/metrics` shows of each metric that docs/metrics.md has: name to labels."""
    shown = {}
    with PrometheusMetrics(port=0) as metrics:
        add = {"counter": metrics.count, "gauge": metrics.gauge, "distribution": metrics.observe}
        for name, kind, labels in _ROW.findall((ROOT / "docs/metrics.md").read_text()):
            before = set(names_in(metrics.render()))
            add[kind](name, 1.0)
            for new in set(names_in(metrics.render())) - before:
                shown[new] = set(re.findall(r"`(\w+)`", labels))
    return shown


def names_in(text):
    return [line.split()[0] for line in text.splitlines() if line and not line.startswith("#")]


def rules():
    document = yaml.safe_load((ROOT / "deploy/prometheus-rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def board():
    return json.loads((ROOT / "deploy/grafana-board.json").read_text())


EXPRESSIONS = [rule["expr"] for rule in rules()] + [
    target["expr"] for panel in board()["panels"] for target in panel["targets"]
]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_names_metrics_and_labels_that_exist(expression, known):
    used = _USE.findall(expression)
    assert used
    assert {name for name, _ in used} <= known.keys()
    labels = set().union(*(known[name] for name, _ in used)) | _OF_EVERY
    asked = {
        label.partition("=")[0].rstrip("~!").strip()
        for _, labels in used
        for label in labels.split(",")
        if label
    }
    for kept in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression):
        asked |= {label.strip() for label in kept.split(",")}
    assert asked <= labels
    assert expression.count("(") == expression.count(")")


def test_an_alert_says_what_and_where_to_read_on():
    for rule in rules():
        page, _, anchor = rule["annotations"]["description"].partition("#")
        headings = re.findall(r"^#+ (.+)$", (ROOT / page).read_text(), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        named = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        kept = re.findall(r"\b(?:by|on) \(([^)]*)\)", rule["expr"])[0].split(",")
        assert named <= {label.strip() for label in kept}


def test_a_boards_panels_lie_beside_each_other():
    places = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in board()["panels"]}
    assert len(places) == len(board()["panels"])
