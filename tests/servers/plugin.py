"""pytest: marks for tests that need a real server, `--faults`, and the summary of servers."""

import os
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import find_helm
from tests.readers.environment import find_readers, find_ultralytics
from tests.upstreams.asking import find_curl
from tests.upstreams.environment import find_upstreams
from tests.upstreams.model_servers import find_huggingface, find_kserve, find_triton

from .environment import TEST_KAFKA, TEST_S3
from .kafka import find_kafka
from .machine import find_network_cut, find_small_disk
from .minio import find_minio
from .missing import MISSING, NOT_RUN, demand, sentences
from .running import STARTS
from .sharing import SharedServers

# Mark: the server that it needs, how to find it, and the variable that names a running one.
_MARKS = {
    "real_kafka": ("kafka", find_kafka, TEST_KAFKA),
    "real_minio": ("minio", find_minio, TEST_S3),
    "small_disk": ("small disk", find_small_disk, ""),
    "network_cut": ("network cut", find_network_cut, ""),
    "real_upstreams": ("upstreams", find_upstreams, ""),
    "real_huggingface": ("huggingface", find_huggingface, ""),
    "real_triton": ("triton", find_triton, ""),
    "real_kserve": ("kserve", find_kserve, ""),
    "real_readers": ("readers", find_readers, ""),
    "real_ultralytics": ("ultralytics", find_ultralytics, ""),
    "real_curl": ("curl", find_curl, ""),
    "real_helm": ("helm", find_helm, ""),
}


def faults(value: object) -> pytest.ParameterSet:
    """Return a parameter that only runs with --faults."""
    return pytest.param(value, marks=pytest.mark.faults)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", action="store_true", help="run the long fault matrix too")


def pytest_configure(config: pytest.Config) -> None:
    if getattr(config.option, "numprocesses", None) and not hasattr(config, "workerinput"):
        servers = SharedServers(STARTS)
        servers.__enter__()
        config.add_cleanup(servers.__exit__)
    for mark, (server, _, variable) in _MARKS.items():
        instead = f", or {variable}" if variable else ""
        config.addinivalue_line("markers", f"{mark}: needs a real {server}{instead}")
    config.addinivalue_line("markers", "faults: long faults under load, run with --faults")
    config.addinivalue_line("markers", "kills: kill -9 at a failpoint, met by a real process")
    config.addinivalue_line("markers", "long: many examples or turns; `make test` leaves it out")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of faults, and deselect them unless `--faults` is given."""
    for item in items:
        if not item.get_closest_marker("kills") and _is_fault(item, config.rootpath):
            item.add_marker(pytest.mark.faults)
    if not config.getoption("--faults"):
        left_out = [item for item in items if item.get_closest_marker("faults")]
        items[:] = [item for item in items if not item.get_closest_marker("faults")]
        config.hook.pytest_deselected(items=left_out)


def _is_fault(item: pytest.Item, root: Path) -> bool:
    """Return whether a test is among the faults, or has its own server to stop or kill."""
    own = {"own_postgres", "own_kafka", "own_minio"}.intersection(getattr(item, "fixturenames", ()))
    return bool(own) or "faults" in item.path.relative_to(root).parts


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, (server, find, variable) in _MARKS.items():
        if item.get_closest_marker(mark) is None or (variable and os.environ.get(variable)):
            continue
        if not demand(server, find):
            NOT_RUN.add(item.nodeid)
            pytest.skip(f"needs a real {server}; the end of this run says why there is none")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report from a worker to the main process what could not run."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["missing"] = (dict(MISSING), sorted(NOT_RUN))


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    missing, not_run = getattr(node, "workeroutput", {}).get("missing", ({}, ()))
    MISSING.update(missing)
    NOT_RUN.update(not_run)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for sentence in sentences():
        terminalreporter.write_line(f"not run on real servers: {sentence}", yellow=True)
