"""The cluster, the release, and the figures that a run prints at its end."""

import os
from collections.abc import Iterator

import pytest

from .cluster import TEST_CLUSTER, Cluster, OwnCluster
from .release import NAMESPACE, Release

_FIGURES: list[str] = []


@pytest.fixture(scope="session")
def figures() -> list[str]:
    """Sentences with numbers, printed at the end."""
    return _FIGURES


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that runs."""
    wanted = os.environ.get(TEST_CLUSTER)
    if not wanted:
        pytest.skip("needs a cluster: `make chart-e2e`")
    found = OwnCluster(tmp_path_factory.mktemp("cluster")) if wanted == "own" else Cluster()
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="session")
def release(
    cluster: Cluster, request: pytest.FixtureRequest, figures: list[str]
) -> Iterator[Release]:
    """The version before, installed with servers of its own, and a client beside it."""
    found = Release(cluster)
    found.make_namespace()
    ready = False
    try:
        figures.append(f"helm install --wait, the version before: {found.install():.0f} s")
        found.start_client()
        ready = True
        yield found
    finally:
        if request.session.testsfailed or not ready:
            print(found.report())
        cluster.remove(NAMESPACE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for figure in _FIGURES:
        terminalreporter.write_line(f"chart: {figure}")
