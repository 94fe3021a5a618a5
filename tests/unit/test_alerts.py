"""Dashboard and alert rules name metrics that exist, and every alert has its runbook entry."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_store.store.metrics import METRICS, SHOWN

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "inference-store"
ALERTS = CHART / "alerts.yaml"
OPERATE = (ROOT / "docs" / "operate.md").read_text()
DASHBOARD = json.loads((CHART / "dashboards" / "inference-store.json").read_text())
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
SAMPLES = {sample: metric for metric in METRICS for sample in metric.samples}
# The process's own, of prometheus_client.
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
# Labels that Prometheus itself adds, and the buckets' own.
ADDED = {"job", "instance", "le"}


def queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


QUERIES = list(queries())


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:inference_store|process)_\w+", expression))


@pytest.mark.parametrize(("where", "expression"), QUERIES)
def test_a_query_names_metrics_that_exist(where: str, expression: str) -> None:
    names = names_in(expression)
    assert names, where
    assert not names - set(SAMPLES) - PROCESS


@pytest.mark.parametrize(("where", "expression"), QUERIES)
def test_a_query_names_labels_that_its_metric_has(where: str, expression: str) -> None:
    """In `by (…)` and in `{…}`: a misspelt one would match nothing, in silence."""
    metrics = [SAMPLES[name] for name in names_in(expression) if name in SAMPLES]
    known = {label for metric in metrics for label in metric.labels} | ADDED | {"version"}
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression)
    used = {label.strip() for group in grouped for label in group.split(",")} | set(matched)
    assert not used - known, where


def test_process_metrics_are_those_of_the_client() -> None:
    shown = {sample.name for family in SHOWN["api"].collect() for sample in family.samples}
    assert shown >= PROCESS


def test_every_metric_is_on_the_dashboard() -> None:
    named = {SAMPLES[n] for _, expr in QUERIES for n in names_in(expr) if n in SAMPLES}
    assert {metric.name for metric in METRICS} == {metric.name for metric in named}


def test_every_alert_has_a_runbook_entry_and_the_reverse() -> None:
    runbook = OPERATE.split("## Runbook", 1)[1].split("\n## ", 1)[0]
    entries = dict(re.findall(r"^### (\w+)\n+(.*?)(?=^### |\Z)", runbook, re.MULTILINE | re.DOTALL))
    assert set(entries) == {rule["alert"] for rule in RULES}
    for name, entry in entries.items():
        for part in ("**Means**", "**Look**", "**Do**"):
            assert part in entry, (name, part)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_is_whole(rule: dict[str, Any]) -> None:
    assert re.fullmatch(r"InferenceStore[A-Z]\w+", rule["alert"])
    assert rule["labels"]["severity"] in {"info", "warning", "critical"}
    assert re.fullmatch(r"\d+[mh]", rule["for"])
    assert rule["annotations"]["summary"]
    assert rule["annotations"]["description"]
    assert rule["annotations"]["runbook"] == f"docs/operate.md#{rule['alert'].lower()}"


def test_names_and_places_of_the_dashboard_do_not_collide() -> None:
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    cells = [
        (x, y)
        for panel in panels
        for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert max(x for x, _ in cells) < 24


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    command = ["promtool", "check", "rules", os.fspath(ALERTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_retention_is_late_after_three_intervals_and_not_before_an_hour() -> None:
    """A fixed hour would always fire at an interval of a day; `> 0` would hide what never ran."""
    (rule,) = (one for one in RULES if one["alert"] == "InferenceStoreRetentionLate")
    assert "clamp_min(3 * max(inference_store_retention_interval_seconds), 3600)" in rule["expr"]
    assert "last_run_timestamp_seconds > 0" not in rule["expr"]
