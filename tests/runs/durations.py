"""pytest: `--durations-by-folder FILE` writes where the time of a run went, folder by folder.

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
"""Of `tests/integration/api/access/test_keys.py` the folder `tests/integration/api` is shown."""


@dataclass
class Cost:
    """What some tests took, in seconds."""

    tests: int = 0
    wall: float = 0.0
    cpu: float = 0.0

    def add(self, other: "Cost") -> None:
        """Count another one in."""
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
        """Note the CPU of one phase (set-up, call, tear-down) in its report."""
        report = yield
        now = time.process_time()
        report.user_properties.append((_CPU, now - self._cpu))
        self._cpu = now
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add one phase; under xdist this is the process that shows the results."""
        cost = self.by_test[report.nodeid]
        cost.tests = 1
        cost.wall += report.duration
        values = (value for name, value in report.user_properties if name == _CPU)
        cost.cpu += sum(value for value in values if isinstance(value, float))

    def by_folder(self) -> dict[str, Cost]:
        """The sums, dearest folder first."""
        sums: dict[str, Cost] = defaultdict(Cost)
        for test, cost in self.by_test.items():
            folders = PurePosixPath(test.partition("::")[0]).parent.parts
            sums["/".join(folders[:_DEPTH])].add(cost)
        return dict(sorted(sums.items(), key=lambda item: -item[1].wall))


def table(costs: dict[str, Cost]) -> Iterable[str]:
    """Lines of a Markdown table."""
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
