"""The table of a run sums seconds by folder, whatever the depth of a test's file."""

import pytest

from tests.runs.durations import Durations, table


def make_report(nodeid: str, seconds: float, cpu: float) -> pytest.TestReport:
    return pytest.TestReport(
        nodeid,
        ("f.py", 1, "test"),
        {},
        "passed",
        None,
        "call",
        duration=seconds,
        user_properties=[("cpu_seconds", cpu), ("other", "text")],
    )


def test_the_dearest_folder_comes_first() -> None:
    durations = Durations()
    durations.pytest_runtest_logreport(make_report("tests/unit/a/test_a.py::test_a", 1.0, 0.75))
    durations.pytest_runtest_logreport(
        make_report("tests/integration/api/b/test_b.py::b", 2.0, 1.0)
    )
    durations.pytest_runtest_logreport(
        make_report("tests/integration/api/test_c.py::test_c", 5.0, 1.0)
    )
    durations.pytest_runtest_logreport(
        make_report("tests/integration/api/test_c.py::test_c", 1.0, 0.0)
    )
    assert list(table(durations.by_folder())) == [
        "| folder | tests | seconds | CPU seconds | waiting |",
        "|---|---|---|---|---|",
        "| `tests/integration/api` | 2 | 8 | 2 | 6 |",
        "| `tests/unit/a` | 1 | 1 | 1 | 0 |",
        "| `all` | 3 | 9 | 3 | 6 |",
    ]
