"""pytest: marks for tests that need a real server, `--faults`, and the sentence at the end."""

import os

import pytest

from tests.upstreams.asking import find_curl
from tests.upstreams.environment import find_upstreams
from tests.upstreams.huggingface import find_huggingface
from tests.upstreams.kserve import find_kserve
from tests.upstreams.triton import find_triton

from .environment import TEST_KAFKA, TEST_S3
from .kafka import find_kafka
from .minio import find_minio
from .missing import NOT_RUN, NOTES, demand, sentences
from .small_disk import find_small_disk

# What a mark asks for, how it is found, and the variable that names one that runs already.
_MARKS = {
    "real_kafka": ("kafka", find_kafka, TEST_KAFKA),
    "real_minio": ("minio", find_minio, TEST_S3),
    "small_disk": ("small disk", find_small_disk, ""),
    "real_upstreams": ("upstreams", find_upstreams, ""),
    "real_huggingface": ("huggingface", find_huggingface, ""),
    "real_triton": ("triton", find_triton, ""),
    "real_kserve": ("kserve", find_kserve, ""),
    "real_curl": ("curl", find_curl, ""),
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--faults", action="store_true", help="run the long fault matrix too")


def pytest_configure(config: pytest.Config) -> None:
    for mark, (server, _, variable) in _MARKS.items():
        instead = f", or {variable}" if variable else ""
        config.addinivalue_line("markers", f"{mark}: needs a real {server}{instead}")
    config.addinivalue_line("markers", "faults: the fault matrix, run with --faults")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what lies in e2e/faults, and leave it out unless it was asked for."""
    for item in items:
        if "faults" in item.path.relative_to(config.rootpath).parts:
            item.add_marker(pytest.mark.faults)
    if not config.getoption("--faults"):
        left_out = [item for item in items if item.get_closest_marker("faults")]
        items[:] = [item for item in items if not item.get_closest_marker("faults")]
        config.hook.pytest_deselected(items=left_out)


def pytest_runtest_setup(item: pytest.Item) -> None:
    for mark, (server, find, variable) in _MARKS.items():
        if item.get_closest_marker(mark) is None or (variable and os.environ.get(variable)):
            continue
        if not demand(server, find):
            NOT_RUN.add(item.nodeid)
            pytest.skip(f"needs a real {server}; the end of this run says why there is none")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for sentence in sentences():
        terminalreporter.write_line(f"not run on real servers: {sentence}", yellow=True)
    for note in NOTES:
        terminalreporter.write_line(note)
