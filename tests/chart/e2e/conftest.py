"""Fixtures: the cluster, the release, and the figures that a run prints at its end."""

import os
from collections.abc import Iterator

import pytest

from .cluster import TEST_CLUSTER, Cluster, OwnCluster
from .release import NAMESPACE, Release

_FIGURES: list[str] = []


@pytest.fixture(scope="session")
def figures() -> list[str]:
    """Return the sentences with numbers that are printed at the end."""
    return _FIGURES


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    kind = os.environ.get(TEST_CLUSTER)
    if not kind:
        pytest.skip("needs a cluster: `make chart-e2e`")
    cluster_ = OwnCluster(tmp_path_factory.mktemp("cluster")) if kind == "own" else Cluster()
    try:
        cluster_.start()
        yield cluster_
    finally:
        cluster_.stop()


@pytest.fixture(scope="session")
def release(
    cluster: Cluster, request: pytest.FixtureRequest, figures: list[str]
) -> Iterator[Release]:
    """Install what is upgraded later with its own servers, and a client beside it."""
    installed = Release(cluster)
    installed.make_namespace()
    ready = False
    try:
        figures.append(f"helm install --wait: {installed.install():.0f} s")
        installed.start_client()
        ready = True
        yield installed
    finally:
        if request.session.testsfailed or not ready:
            print(installed.report())
        cluster.remove(NAMESPACE)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for figure in _FIGURES:
        terminalreporter.write_line(f"chart: {figure}")
