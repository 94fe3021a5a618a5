"""Dashboard and alert rules name metrics that exist, and every alert has its runbook entry."""

import json
import os
import re
import shutil
import subprocess
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
RULES: dict[str, dict[str, Any]] = {
    rule["alert"]: rule
    for group in yaml.safe_load(ALERTS.read_text())["groups"]
    for rule in group["rules"]
}
PANELS = DASHBOARD["panels"]
QUERIES = [
    *((panel["title"], target["expr"]) for panel in PANELS for target in panel.get("targets", ())),
    *((alert, rule["expr"]) for alert, rule in RULES.items()),
]
SAMPLES = {sample: metric for metric in METRICS for sample in metric.samples}
# The process's own, of prometheus_client.
PROCESS = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
# Labels that Prometheus itself adds, the buckets' own, and that of the chart's ServiceMonitor.
ADDED = {"job", "instance", "le", "inference_store", "version"}
# How old a sample is at most when a rule looks at it, at the chart's interval.
SCRAPED_SECONDS = 30


def find_names(expression: str) -> set[str]:
    return set(re.findall(r"\b(?:inference_store|process)_\w+", expression))


def test_queries_name_what_exists_of_chosen_installations(subtests: pytest.Subtests) -> None:
    """A misspelt label, in `by (…)` or in `{…}`, would match nothing, in silence."""
    for where, expression in QUERIES:
        with subtests.test(where, expression=expression):
            names = find_names(expression)
            assert names
            assert not names - set(SAMPLES) - PROCESS
            metrics = [SAMPLES[name] for name in names if name in SAMPLES]
            known_labels = {label for metric in metrics for label in metric.labels} | ADDED
            grouped = ",".join(re.findall(r"by \(([^)]*)\)", expression))
            matched = re.findall(r'(\w+)\s*(?:=~|!~|!=|=)\s*"', expression)
            assert set(re.findall(r"\w+", grouped)) | set(matched) <= known_labels
    # Alike everywhere: the dashboard fills in its variable, the chart its own release.
    for where, expression in QUERIES:
        matcher = '{inference_store=~".*"' if where in RULES else '{inference_store=~"$store"'
        selected = re.findall(r"\b(?:inference_store|process)_\w+(.{0,30})", expression)
        assert selected, where
        assert all(after.startswith(matcher) for after in selected), where
    [variable] = [item for item in DASHBOARD["templating"]["list"] if item["name"] == "store"]
    assert variable["allValue"] == ".*"  # also if nothing sets the label
    assert variable["current"]["value"] == "$__all"
    shown_names = {name for _, expression in QUERIES for name in find_names(expression)}
    unseen = {metric.name for metric in METRICS if shown_names.isdisjoint(metric.samples)}
    assert not unseen


def test_does_not_show_jobs_of_other_programs() -> None:
    """Any program may have process_… and be called `api`: ours has inference_store_build_info."""
    expressions = [query for _, query in QUERIES if "process_" in query]
    assert len(expressions) == len(PROCESS)
    ours = " and on (job, instance) inference_store_build_info"
    assert all(ours in expression for expression in expressions)
    sample_names = {sample.name for family in SHOWN["api"].collect() for sample in family.samples}
    assert sample_names >= PROCESS


def test_a_stalled_loop_and_late_retention_are_reported_in_time() -> None:
    """The probe ends it soon after the limit. An api's loop is silent: it serves its metrics."""
    rule = RULES["InferenceStoreLoopStands"]
    limits = re.findall(r"> (\d+) and on \(job, instance\) inference_store_([a-z]+)", rule["expr"])
    services: dict[str, Any] = {"ingester": run_ingester, "retention": run_retention}
    assert {service for _, service in limits} == services.keys()
    for seconds, service in limits:
        allowed = signature(services[service]).parameters["live_seconds"].default
        assert int(seconds) + SCRAPED_SECONDS <= allowed
    assert rule["for"] == "0m"
    # A fixed hour would always fire at an interval of a day; `> 0` would hide what never ran.
    expression = RULES["InferenceStoreRetentionLate"]["expr"]
    interval = re.escape('max(inference_store_retention_interval_seconds{inference_store=~".*"})')
    assert re.search(rf"clamp_min\(3 \* {interval}, 3600\)", expression)
    assert "last_run_timestamp_seconds > 0" not in expression


def test_an_alert_is_whole_and_has_a_runbook_entry() -> None:
    entries = dict(re.findall(r"^## (\w+)\n+(.*?)(?=^## |\Z)", RUNBOOK, re.MULTILINE | re.DOTALL))
    assert entries.keys() == RULES.keys()
    for name, rule in RULES.items():
        assert all(part in entries[name] for part in ("**Means**", "**Look**", "**Do**")), name
        assert re.fullmatch(r"InferenceStore[A-Z]\w+", name)
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}, name
        assert re.fullmatch(r"\d+[mh]", rule["for"]), name
        assert rule["annotations"]["summary"], name
        assert rule["annotations"]["description"], name
        assert rule["annotations"]["runbook_url"].endswith(f"/docs/runbook#{name.lower()}")


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_promtool_takes_the_rules() -> None:
    command = ["promtool", "check", "rules", os.fspath(ALERTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
