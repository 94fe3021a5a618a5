"""pytest: a failed run ends with each failed test, its reason, and the command to repeat it."""

import os
import re
import shlex
from collections.abc import Iterable
from pathlib import Path

import pytest

from .groups import GROUP_SUFFIX

FAILURES = "INFERENCE_STORE_TEST_FAILURES"
"""The variable that names a file to append the same lines to, for the end of a longer run."""
_LINES = 40
_WIDTH = 160
_REPEAT = ".venv/bin/python -m pytest"


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
        lines = closing_lines(
            reports, faults=bool(self._config.getoption("--faults", default=False))
        )
        for line in lines:
            terminal.write_line(line)
        if path := os.environ.get(FAILURES):
            with Path(path).open("a") as file:
                file.writelines(f"{line}\n" for line in lines)


def closing_lines(reports: Iterable[pytest.TestReport], *, faults: bool = False) -> list[str]:
    """Return at most 40 lines: two for each failed test, and the number of further ones."""
    by_test: dict[str, pytest.TestReport] = {}
    for report in reports:
        by_test.setdefault(report.nodeid, report)
    most = _LINES // 2 - 1
    lines = [f"{len(by_test)} failed; the reason of each, and how to repeat it:"] if by_test else []
    for nodeid, report in list(by_test.items())[:most]:
        test = nodeid.partition(GROUP_SUFFIX)[0]
        option = "--faults " if faults else ""
        lines.append(f"  {find_reason(report)}")
        lines.append(f"    {_REPEAT} {option}{shlex.quote(test)}")
    if len(by_test) > most:
        lines.append(f"  and {len(by_test) - most} more, above")
    return lines


def find_reason(report: pytest.TestReport) -> str:
    """Return the error's message in one line, without the traceback."""
    crash = getattr(report.longrepr, "reprcrash", None)
    text = str(getattr(crash, "message", None) or report.longrepr or "no reason was given")
    when = getattr(report, "when", "collection")
    phase = "" if when == "call" else f"in its {when}: "
    return (phase + re.sub(r"\s+", " ", text.strip()))[:_WIDTH]
