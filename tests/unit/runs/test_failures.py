"""A red run ends with what failed, why, and how to repeat it: in 40 lines, however much failed."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs.failures import FAILURES, closing_lines
from tests.runs.groups import GROUP_SUFFIX


def make_report(nodeid: str, text: str, when: str = "call") -> pytest.TestReport:
    return pytest.TestReport(
        nodeid,
        ("f.py", 1, "test"),
        {},
        "failed",
        text,
        when=when,  # type: ignore[arg-type]
    )


def test_each_failed_test_has_its_reason_and_its_command() -> None:
    assert closing_lines(
        [
            make_report("tests/a.py::test_x[a b]", "ValueError: no\n  good"),
            make_report(f"tests/b.py::test_y{GROUP_SUFFIX}b", "OSError: full", "setup"),
            make_report(f"tests/b.py::test_y{GROUP_SUFFIX}b", "OSError: again", "teardown"),
        ]
    ) == [
        "2 failed; the reason of each, and how to repeat it:",
        "  ValueError: no good",
        "    .venv/bin/python -m pytest 'tests/a.py::test_x[a b]'",
        "  in its setup: OSError: full",
        "    .venv/bin/python -m pytest tests/b.py::test_y",
    ]


def test_a_test_of_the_fault_matrix_is_repeated_with_its_option() -> None:
    [_, _, command] = closing_lines([make_report("tests/a.py::test_x", "no")], faults=True)
    assert command == "    .venv/bin/python -m pytest --faults tests/a.py::test_x"


def test_many_failures_take_forty_lines() -> None:
    lines = closing_lines([make_report(f"tests/a.py::test_{n}", "x" * 500) for n in range(100)])
    assert len(lines) == 40
    assert max(map(len, lines)) < 200
    assert lines[-1] == "  and 81 more, above"


def test_a_green_run_prints_nothing() -> None:
    assert closing_lines([]) == []


def test_reports_a_failure_at_once(tmp_path: Path) -> None:
    tests = tmp_path / "test_some.py"
    tests.write_text("def test_bad():\n    assert 1 == 2\n\ndef test_good():\n    pass\n")
    options = ["-q", "-c", "/dev/null", "-p", "tests.runs.failures", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, str(tests)]
    # Its failure is none of the run's around it, whose closing lines it must not enter.
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", FAILURES))}
    run = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    match = re.search(r"test_bad failed: assert 1 == 2\n", run.stdout)
    assert match is not None, run.stdout + run.stderr
    assert match.start() < run.stdout.index("= FAILURES =")
