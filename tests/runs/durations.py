"""pytest: `--durations-by-folder FILE` writes the time that each folder of tests took.

CPU is that of the pytest process alone; waiting is the rest of a test's seconds, while servers
and services worked or nothing did.
"""

import os
import time
from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

_CPU = "cpu_seconds"
_DEPTH = 3
"""The parts of a path that are shown: `tests/integration/api` for a file in `api/access`."""


@dataclass
class Cost:
    """The time that some tests took, in seconds."""

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: "Cost") -> None:
        """Add another cost."""
        self.tests += other.tests
        self.wall += other.wall
        self.cpu += other.cpu


class Durations:
    """Counts seconds and CPU seconds of each test."""

    def __init__(self) -> None:
        self.by_test: dict[str, Cost] = defaultdict(Cost)
        self._cpu = time.process_time()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self,
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the CPU seconds of one phase (set-up, call, tear-down) to its report."""
        report = yield
        now = time.process_time()
        report.user_properties.append((_CPU, now - self._cpu))
        self._cpu = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase; under xdist this runs in the main process."""
        cost = self.by_test[report.nodeid]
        cost.tests = 1
        cost.wall += report.duration
        values = (value for name, value in report.user_properties if name == _CPU)
        cost.cpu += sum(value for value in values if isinstance(value, float))

    def by_folder(self) -> dict[str, Cost]:
        """Return the sums by folder, the longest time first."""
        sums: dict[str, Cost] = defaultdict(Cost)
        for test, cost in self.by_test.items():
            folders = PurePosixPath(test.partition("::")[0]).parent.parts
            sums["/".join(folders[:_DEPTH])].add(cost)
        return dict(sorted(sums.items(), key=lambda item: -item[1].wall))


def table(costs: dict[str, Cost]) -> Iterable[str]:
    """Yield the lines of a Markdown table."""
    total = Cost()
    for cost in costs.values():
        total.add(cost)
    yield "| folder | tests | seconds | CPU seconds | waiting |"
    yield "|---|---|---|---|---|"
    for name, cost in (*costs.items(), ("all", total)):
        waiting = max(cost.wall - cost.cpu, 0.0)
        yield f"| `{name}` | {cost.tests} | {cost.wall:.0f} | {cost.cpu:.0f} | {waiting:.0f} |"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--durations-by-folder", metavar="FILE", help="write seconds and CPU seconds by folder"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--durations-by-folder") or "PYTEST_XDIST_WORKER" in os.environ:
        config.pluginmanager.register(Durations(), "inference-store-durations")


def pytest_terminal_summary(config: pytest.Config) -> None:
    durations = config.pluginmanager.get_plugin("inference-store-durations")
    path = config.getoption("--durations-by-folder")
    if isinstance(durations, Durations) and path:
        Path(path).write_text("\n".join(table(durations.by_folder())) + "\n")
        tests = sorted(durations.by_test.items(), key=lambda item: -item[1].wall)
        lines = (f"{cost.wall:.2f}\t{cost.cpu:.2f}\t{test}" for test, cost in tests)
        Path(path).with_suffix(".tests.tsv").write_text("\n".join(lines) + "\n")
