"""pytest: a failed run ends with each failed test, its reason, and the command to repeat it.

Each failure is also a line of JSON in the file that INFERENCE_STORE_TEST_FAILURES names. Tests of
a file that has servers of its own run on one worker.
"""

import gc
import json
import os
import re
import shlex
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import TypedDict

import pytest
from _pytest.nodeid import NodeId

FAILURES = "INFERENCE_STORE_TEST_FAILURES"
_KILLS = "kills"
_LINES = 40
_WIDTH = 160
_REPEAT = ".venv/bin/python -m pytest"


class Failure(TypedDict):
    """A failed test; one that judges what a kill left is not `repeatable`."""

    test: str
    reason: str
    repeatable: bool


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Note in the report that the test kills: what a kill left was seen, whatever comes next."""
    report = yield
    if item.get_closest_marker("kills") or item.get_closest_marker("faults"):
        report.user_properties.append((_KILLS, True))
    return report


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Closing(config), "inference-store-failures")


class _Closing:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Report a test as soon as it fails, since the run may take minutes more."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and isinstance(terminal, pytest.TerminalReporter):
            terminal.write_line("")
            terminal.write_line(f"{report.nodeid} failed: {find_reason(report)}")

    @pytest.hookimpl(trylast=True)
    def pytest_unconfigure(self) -> None:
        """Write the lines after pytest's own last line, at the very end."""
        terminal = self._config.pluginmanager.get_plugin("terminalreporter")
        if not isinstance(terminal, pytest.TerminalReporter):
            return
        reports = [*terminal.stats.get("failed", ()), *terminal.stats.get("error", ())]
        failures = list_failures(reports)
        faults = bool(self._config.getoption("--faults", default=False))
        for line in closing_lines(failures, faults=faults):
            terminal.write_line(line)
        if path := os.environ.get(FAILURES):
            with Path(path).open("a") as file:
                file.writelines(f"{json.dumps(failure)}\n" for failure in failures)


def list_failures(reports: Iterable[pytest.TestReport]) -> list[Failure]:
    """Return one failure for each test."""
    by_test: dict[str, Failure] = {}
    for report in reports:
        test = report.nodeid.partition(GROUP_SUFFIX)[0]
        repeatable = (_KILLS, True) not in getattr(report, "user_properties", ())
        failure = Failure(test=test, reason=find_reason(report), repeatable=repeatable)
        by_test.setdefault(test, failure)
    return list(by_test.values())


def closing_lines(failures: list[Failure], *, faults: bool = False) -> list[str]:
    """Return at most 40 lines: two for each failed test, and the number of further ones."""
    most = _LINES // 2 - 1
    lines = [f"{len(failures)} failed; the reason of each, and how to repeat it:"][: len(failures)]
    for failure in failures[:most]:
        option = "--faults " if faults else ""
        lines.append(f"  {failure['reason']}")
        lines.append(f"    {_REPEAT} {option}{shlex.quote(failure['test'])}")
    if len(failures) > most:
        lines.append(f"  and {len(failures) - most} more, above")
    return lines


def find_reason(report: pytest.TestReport) -> str:
    """Return the error's message in one line, without the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longrepr or "no reason was given")
    when = getattr(report, "when", "collection")
    phase = "" if when == "call" else f"in its {when}: "
    return (phase + re.sub(r"\s+", " ", text.strip()))[:_WIDTH]


_GROUP = "servers-of-"
GROUP_SUFFIX = f"@{_GROUP}"
"""The text that is added to the id of a test, before the group's name."""

_FILES = {"tests.servers.secured": "secured", "tests.upstreams.fixtures": "upstreams"}
"""Modules of fixtures whose servers last for a session, with the group of their users."""


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Add its group to the id of each test that needs one; in a worker of `--dist loadgroup`."""
    if not getattr(config.option, "loadgroup", False):
        return
    for item in items:
        group = _find_group(item)
        if group:
            item._id = NodeId.parse(f"{item.nodeid}{GROUP_SUFFIX}{group}")


def _find_group(item: pytest.Item) -> str:
    definitions = getattr(item, "_fixtureinfo").name2fixturedefs.values()  # noqa: B009  (private)
    fixtures = [overrides[-1] for overrides in definitions]
    for fixture in fixtures:
        shared = _FILES.get(fixture.func.__module__)
        if shared and fixture.scope == "session":
            return shared
    if any(fixture.scope in {"module", "package"} for fixture in fixtures):
        return item.path.stem
    return ""


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
