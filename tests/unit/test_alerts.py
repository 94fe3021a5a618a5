"""Dashboard and alert rules name metrics that exist, and every alert has its runbook entry."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import yaml

from inference_store.ingester.run import run as run_ingester
from inference_store.platform.metrics import METRICS, SHOWN
from inference_store.retention.run import run as run_retention

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "inference-store"
ALERTS = CHART / "alerts.yaml"
RUNBOOK = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
DASHBOARD = json.loads((CHART / "dashboards" / "inference-store.json").read_text())
RULES: list[dict[str, Any]] = [
    rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]
]
SAMPLES = {sample: metric for metric in METRICS for sample in metric.samples}
# The process's own, of prometheus_client.
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
# Labels that Prometheus itself adds, the buckets' own, and that of the chart's ServiceMonitor.
ADDED = {"job", "instance", "le", "inference_store"}


def list_queries() -> Iterator[tuple[str, str]]:
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for rule in RULES:
        yield rule["alert"], rule["expr"]


QUERIES = list(list_queries())
ALERTED = {rule["alert"] for rule in RULES}
# How old a sample is at most when a rule looks at it, at the chart's interval.
SCRAPED_SECONDS = 30


def find_names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:inference_store|process)_\w+", expression))


def test_a_query_names_metrics_that_exist(subtests: pytest.Subtests) -> None:
    for where, expression in QUERIES:
        with subtests.test(where, expression=expression):
            names = find_names(expression)
            assert names
            assert not names - set(SAMPLES) - PROCESS


def test_a_query_names_labels_that_its_metric_has(subtests: pytest.Subtests) -> None:
    """In `by (…)` and in `{…}`: a misspelt one would match nothing, in silence."""
    for where, expression in QUERIES:
        with subtests.test(where, expression=expression):
            assert not find_unknown_labels(expression)


def find_unknown_labels(expression: str) -> set[str]:
    metrics = [SAMPLES[name] for name in find_names(expression) if name in SAMPLES]
    known_labels = {label for metric in metrics for label in metric.labels} | ADDED | {"version"}
    grouped = re.findall(r"by \(([^)]*)\)", expression)
    matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression)
    used = {label.strip() for group in grouped for label in group.split(",")} | set(matched)
    return used - known_labels


def test_a_query_looks_at_chosen_installations(subtests: pytest.Subtests) -> None:
    """Alike everywhere: the dashboard fills in its variable, the chart its own release."""
    for where, expression in QUERIES:
        matcher = '{inference_store=~".*"' if where in ALERTED else '{inference_store=~"$store"'
        selected = re.findall(r"\b(?:inference_store|process)_\w+(.{0,30})", expression)
        with subtests.test(where, expression=expression):
            assert selected
            assert all(after.startswith(matcher) for after in selected)


def test_the_dashboard_counts_every_installation_until_one_is_chosen() -> None:
    (variable,) = (
        candidate for candidate in DASHBOARD["templating"]["list"] if candidate["name"] == "store"
    )
    assert variable["allValue"] == ".*"  # also if nothing sets the label
    assert variable["current"]["value"] == "$__all"


def test_does_not_show_jobs_of_other_programs() -> None:
    """Any program may have process_… and be called `api`: ours has inference_store_build_info."""
    expressions = [query for _, query in QUERIES if "process_" in query]
    assert len(expressions) == len(PROCESS)
    assert all(
        " and on (job, instance) inference_store_build_info" in expression
        for expression in expressions
    )


def test_a_stalled_loop_is_reported_before_its_pod_restarts() -> None:
    """The probe ends it soon after the limit. An api's loop is silent: it serves its metrics."""
    (rule,) = (candidate for candidate in RULES if candidate["alert"] == "InferenceStoreLoopStands")
    comparisons = re.findall(
        r"> (\d+) and on \(job, instance\) inference_store_([a-z]+)", rule["expr"]
    )
    limits: dict[str, Callable[..., object]] = {
        "ingester": run_ingester,
        "retention": run_retention,
    }
    assert {service for _, service in comparisons} == limits.keys()
    for seconds, service in comparisons:
        allowed = signature(limits[service]).parameters["live_seconds"].default
        assert int(seconds) + SCRAPED_SECONDS <= allowed
    assert rule["for"] == "0m"


def test_process_metrics_are_those_of_the_client() -> None:
    sample_names = {sample.name for family in SHOWN["api"].collect() for sample in family.samples}
    assert sample_names >= PROCESS


def test_every_metric_is_on_the_dashboard() -> None:
    shown_metrics = {SAMPLES[n] for _, expr in QUERIES for n in find_names(expr) if n in SAMPLES}
    assert {metric.name for metric in METRICS} == {metric.name for metric in shown_metrics}


def test_every_alert_has_a_runbook_entry_and_the_reverse() -> None:
    entries = dict(re.findall(r"^## (\w+)\n+(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    assert set(entries) == {rule["alert"] for rule in RULES}
    for name, entry in entries.items():
        for part in ("**Means**", "**Look**", "**Do**"):
            assert part in entry, (name, part)


def test_an_alert_is_whole(subtests: pytest.Subtests) -> None:
    for rule in RULES:
        with subtests.test(rule["alert"]):
            assert re.fullmatch(r"InferenceStore[A-Z]\w+", rule["alert"])
            assert rule["labels"]["severity"] in {"info", "warning", "critical"}
            assert re.fullmatch(r"\d+[mh]", rule["for"])
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]
            assert (
                rule["annotations"]["runbook"] == f"docs/how-to/runbook.md#{rule['alert'].lower()}"
            )


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
    (rule,) = (
        candidate for candidate in RULES if candidate["alert"] == "InferenceStoreRetentionLate"
    )
    interval = re.escape('max(inference_store_retention_interval_seconds{inference_store=~".*"})')
    assert re.search(rf"clamp_min\(3 \* {interval}, 3600\)", rule["expr"])
    assert "last_run_timestamp_seconds > 0" not in rule["expr"]
