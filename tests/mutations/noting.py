"""pytest: add each test that fails to the file which the variable names, a line of JSON each."""

import json
import os
from pathlib import Path

import pytest

FAILED = "INFERENCE_STORE_TEST_MUTATION_FAILED"
"""The variable that names the file."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note a failed test. A failing fixture is usually the machine's trouble and is not noted."""
    if report.failed and report.when == "call":
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = str(getattr(crash, "message", None) or report.longrepr or "").strip()
        with Path(os.environ[FAILED]).open("a") as file:
            file.write(json.dumps([report.nodeid, reason.partition("\n")[0]]) + "\n")
